// Writes ../app.js, ../app.css and ../app.policy, which are checked in: whoever builds rust-ort needs no npm. With a folder as
// argument it writes them there, for the test that holds them against these sources.
import { createHash } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..");

async function built(entry, options) {
  const made = await build({
    entryPoints: [join(here, entry)],
    bundle: true,
    minify: true,
    charset: "ascii",
    legalComments: "none",
    write: false,
    ...options,
  });
  return made.outputFiles[0].text.trim();
}

const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
const program = await built("main.ts", { format: "iife", target: ["es2022"] });
const style = await built("theme.css", { target: ["chrome112", "firefox113", "safari16.4"] });
const policy = [
  "default-src 'none'",
  `script-src ${hash(program)}`,
  `style-src ${hash(style)}`,
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
mkdirSync(out, { recursive: true });
for (const [name, text] of [["app.js", program], ["app.css", style], ["app.policy", policy]]) {
  writeFileSync(join(out, name), text);
}
console.log(`app.js ${program.length} B, app.css ${style.length} B`);
