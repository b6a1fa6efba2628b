// Checkpoints as a tree: which one was trained from which, in lanes, newest on top, as version control draws its history.

/**
 * For `checkpoints` (`{step, parent_step}`, newest first) one row each: `{lane, from, to, orphan}`. `lane` is where its dot stands, `from` are the
 * lanes that come down to it from newer rows, `through` those that pass by, `to` the lane that goes on below it (null where
 * its parent is not there any more, or it is the first).
 */
export function lanes(checkpoints) {
  const there = new Set(checkpoints.map((one) => one.step));
  let open = []; // per lane: the step that it leads down to, or null
  return checkpoints.map(({ step, parent_step: parent }) => {
    const from = open.flatMap((wanted, lane) => (wanted === step ? [lane] : []));
    let lane = from.length > 0 ? from[0] : open.indexOf(null);
    if (lane < 0) lane = open.length;
    const through = open.flatMap((wanted, index) => (wanted !== null && wanted !== step ? [index] : []));
    open = open.map((wanted) => (wanted === step ? null : wanted));
    const goes = parent !== null && parent !== undefined && there.has(parent);
    open[lane] = goes ? parent : null;
    while (open.length > 0 && open[open.length - 1] === null) open.pop();
    return { lane, from, through, to: goes ? lane : null, orphan: parent !== null && parent !== undefined && !goes };
  });
}

/** How many lanes the rows need. */
export function width(rows) {
  return rows.reduce((most, row) => Math.max(most, row.lane + 1, ...row.from.map((lane) => lane + 1), ...row.through.map((lane) => lane + 1)), 1);
}
