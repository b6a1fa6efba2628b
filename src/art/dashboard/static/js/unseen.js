// Characters that nobody sees, made visible: what others wrote may hold ones that turn the direction of a text, move a
// terminal's cursor, or hide something. The command line shows them in the same words (utils/visible).

// Control and format characters, halves of pairs, ends of lines and paragraphs. Spaces, line feeds and tabs stay, and what
// joins or parts the letters of a word, in Persian as in emoji.
const OTHERS = "(?![\\n\\t\\u200c\\u200d]|\\r\\n)[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Zl}\\p{Zp}]";
const UNSEEN = new RegExp(OTHERS, "gu");
const ANY = new RegExp(OTHERS, "u");
const SPOKEN = ["title", "aria-label", "alt", "label"]; // attributes that a person reads, or hears

/** The text with each of them as an escape: `\u202e`. */
export function seen(text) {
  return ANY.test(text) ? text.replace(UNSEEN, escaped) : text;
}

function escaped(character) {
  if (character === "\r") return "\\r";
  const code = character.codePointAt(0);
  const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${letter}${code.toString(16).padStart(digits, "0")}`;
}

/** For everything that is drawn: texts of the document, and attributes that are read. What a field holds stays as it is. */
export function seenIn(node) {
  if (node.type === null) {
    if (typeof node.props === "string") node.props = seen(node.props);
  } else if (typeof node.type === "string") {
    for (const name of SPOKEN) {
      if (typeof node.props[name] === "string") node.props[name] = seen(node.props[name]);
    }
  }
}
