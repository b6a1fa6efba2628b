// What the key may do. The server decides; the page only says beforehand what it would refuse, and why.

import { useResource } from "./resource.js";

const ROLES = ["infer", "rollout", "train", "admin"];

/** `refusal(role)`: why something that needs `role` cannot be done with this key, "" when it can. */
export function useRights() {
  const { data } = useResource("views/key");
  return {
    known: data !== null,
    key: data,
    refusal: (role) => {
      if (!data) return ""; // not known yet: the server will say
      if (data.read_only) return "This is the dashboard of a folder on which no server runs (art ui): nothing can be changed or sampled.";
      if (ROLES.indexOf(data.role) < ROLES.indexOf(role)) return `Your key's role is ${data.role}; this needs ${role}.`;
      return "";
    },
  };
}
