// What the key may do. The server decides; the page only says beforehand what it would refuse, and why.

import { api, getKey } from "./api.js";
import { useEffect, useState } from "./lib.js";

const ROLES = ["infer", "rollout", "train", "admin"];

let asked = { key: null, answer: null }; // once for each key: its rights do not change

function rights() {
  if (asked.key !== getKey()) asked = { key: getKey(), answer: api.get("views/key") };
  return asked.answer;
}

/** `refusal(role)`: why something that needs `role` cannot be done with this key, "" when it can. */
export function useRights() {
  const [{ known, key }, setState] = useState({ known: false, key: null });
  useEffect(() => {
    let current = true;
    rights().then(
      (answer) => current && setState({ known: true, key: answer }),
      () => {
        asked = { key: null, answer: null }; // asked again by the next view; until then the server says what it refuses
        if (current) setState({ known: true, key: null });
      },
    );
    return () => {
      current = false;
    };
  }, []);
  const refusal = (role) => {
    if (!known) return "One moment: what your key may do is not known yet.";
    if (!key) return "";
    if (key.read_only) return "This is the dashboard of a folder on which no server runs (art ui): nothing can be changed or sampled.";
    if (ROLES.indexOf(key.role) < ROLES.indexOf(role)) return `Your key's role is ${key.role}; this needs ${role}.`;
    return "";
  };
  return { known, key, refusal };
}
