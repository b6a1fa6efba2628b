// Everything views build from, except the charts, which load their library only when one is shown.

export { Badge, Status, StatusBar, ordered } from "./badge.js";
export { Confirm, Dialog } from "./dialog.js";
export { CopyButton, Facts, PageHead, Tabs, useTitle } from "./page.js";
export { Sparkline } from "./sparkline.js";
export { Empty, ErrorBox, Loading, Resource } from "./states.js";
export { More, Table } from "./table.js";
