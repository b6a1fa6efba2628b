// A rollout's calls as a tree, and the conversation along one path of it.

/**
 * Calls of a trajectory as `{byNumber, children, roots, leaves}`; `children` by number of the parent, in the order of the
 * calls. A call whose parent is not there is a root.
 */
export function treeOf(calls) {
  const byNumber = new Map(calls.map((call) => [call.number, call]));
  const children = new Map(calls.map((call) => [call.number, []]));
  const roots = [];
  for (const call of [...calls].sort((a, b) => a.number - b.number)) {
    if (call.parent !== null && call.parent !== undefined && byNumber.has(call.parent)) children.get(call.parent).push(call);
    else roots.push(call);
  }
  const leaves = calls.filter((call) => children.get(call.number).length === 0);
  return { byNumber, children, roots, leaves };
}

/** From the root to a call. */
export function ancestors(tree, number) {
  const path = [];
  const seen = new Set();
  for (let call = tree.byNumber.get(number); call && !seen.has(call.number); call = tree.byNumber.get(call.parent)) {
    seen.add(call.number);
    path.unshift(call);
  }
  return path;
}

/** The path through a call: its ancestors, itself, and the calls that go on from it, along its branch where it forks. */
export function pathThrough(tree, number) {
  const path = ancestors(tree, number);
  let last = path.at(-1);
  while (last) {
    const next = tree.children.get(last.number);
    last = next.find((call) => call.branch === last.branch && !call.auxiliary) ?? next.find((call) => !call.auxiliary) ?? (next.length === 1 ? next[0] : undefined);
    if (last) path.push(last);
  }
  return path;
}

/** Fates of what a rollout is judged by, as the tree of a rollout tells them; the others were left out of it. */
const KEPT = ["trained", "trainable", "pending", "evaluation"];

const kept = (choice) => KEPT.includes(choice.fate);

/** The number of the call with which a rollout ends, and whose path is shown first: the last one that is not on the side and was not left out. */
export function lastCall(calls) {
  const ordered = [...calls].sort((a, b) => a.number - b.number);
  const ours = ordered.filter((call) => !call.auxiliary);
  const judged = ours.filter((call) => call.choices.some(kept));
  return (judged.at(-1) ?? ours.at(-1) ?? ordered.at(-1))?.number ?? null;
}

/** Which choice of each call of a path is gone on from: `[{call, choice}]`; the last one's is the first that was not left out. */
export function taken(path) {
  return path.map((call, index) => {
    const next = path[index + 1];
    const wanted = next ? next.parent_choice ?? 0 : call.choices.find(kept)?.index ?? 0;
    return { call, choice: call.choices.find((choice) => choice.index === wanted) ?? call.choices[0] ?? null };
  });
}

/** The messages of a path, one below the other, as a group shows them. */
export function conversation(path) {
  return taken(path).flatMap(({ call, choice }) => (choice ? [...call.tail, choice.message] : call.tail));
}

/**
 * The outline: calls that follow one another without a fork stand in one list; where more than one goes on, the others hang
 * below as lists of their own. `[{call, forks: [list, ...]}, ...]` for each root.
 */
export function outline(tree) {
  const listFrom = (first) => {
    const list = [];
    for (let call = first; call; ) {
      const next = tree.children.get(call.number);
      const on = next.find((one) => one.branch === call.branch) ?? next.find((one) => !one.auxiliary) ?? next[0];
      list.push({ call, forks: next.filter((one) => one !== on).map(listFrom) });
      call = on;
    }
    return list;
  };
  return tree.roots.map(listFrom);
}
