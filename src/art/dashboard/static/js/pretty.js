// Texts that strangers wrote, made readable without changing what they say.

const INDENT = "  ";
const LONGEST_JSON = 400_000; // characters; beyond, laying out costs more than it helps
const PIECE = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/gs;

/**
 * JSON over several lines, null where the text is no JSON object or list. Numbers and escapes stay as they were written:
 * a number of 20 digits keeps them all.
 */
export function prettyJson(text) {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed) || trimmed.length > LONGEST_JSON) return null;
  try {
    JSON.parse(trimmed);
  } catch {
    return null;
  }
  let depth = 0;
  let out = "";
  let last = "";
  const line = () => `\n${INDENT.repeat(depth)}`;
  for (const [piece] of trimmed.matchAll(PIECE)) {
    if (piece === "}" || piece === "]") {
      depth -= 1;
      out += (last === "{" || last === "[" ? "" : line()) + piece;
    } else {
      if (last === "{" || last === "[" || last === ",") out += line();
      out += piece === ":" ? ": " : piece;
      if (piece === "{" || piece === "[") depth += 1;
    }
    last = piece;
  }
  return out;
}

const SEEN = { " ": "·", "\n": "⏎\n", "\t": "⇥\t", "\u007f": "␡", "\u00a0": "⍽" };
// Spaces of all kinds, control characters, and what changes the direction of a text or joins and splits it unseen.
const HIDDEN = "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb";
const UNSEEN = new RegExp(`[${HIDDEN}\\s]`, "g");
const SUSPECT = new RegExp(`[${HIDDEN}]`);

/** The text with white space and control characters as marks; lines still break where they did. */
export function withMarks(text) {
  return text.replace(UNSEEN, (character) => {
    if (SEEN[character]) return SEEN[character];
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** Whether there is something in a text that an eye does not see (other than spaces, tabs and line feeds). */
export function hasHidden(text) {
  return SUSPECT.test(text.replaceAll("\r\n", "\n"));
}

/** A text in parts of about `size` characters that end at line ends; the line feed between two parts is left out. */
export function inParts(text, size = 8000) {
  if (text.length <= size) return [text];
  const parts = [];
  let from = 0;
  while (text.length - from > size) {
    const cut = text.indexOf("\n", from + size);
    if (cut < 0) break;
    parts.push(text.slice(from, cut));
    from = cut + 1;
  }
  parts.push(text.slice(from));
  return parts;
}

/** The first `lines` lines of a text, at most `characters` of it; the whole text where that is all. */
export function beginning(text, { lines, characters }) {
  let at = 0;
  for (let line = 0; line < lines && at >= 0; line += 1) at = text.indexOf("\n", at) + 1 || -1;
  const end = Math.min(at < 0 ? text.length : at - 1, characters);
  return text.slice(0, Math.max(0, end));
}
