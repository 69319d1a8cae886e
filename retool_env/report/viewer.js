"use strict";
// Each row of the list holds its attempt as JSON, in a script element that does not run: {question, opening, rest}, all
// of it HTML that was escaped when the page was written. It is parsed only when the attempt is looked at. DOMParser
// never runs what it parses, and the page's policy would not let it.

const list = document.getElementById("attempts");
const parts = Array.from(list.children, (part) => ({ part, rows: Array.from(part.children) }));
const rows = parts.flatMap(({ rows }) => rows);
const main = document.getElementById("attempt");
const filters = document.getElementById("filters");
const search = document.getElementById("search");
const haystacks = new Map();
let current = null;

const link = (row) => row.querySelector("a");
const attempt = (row) => JSON.parse(row.querySelector("script").textContent);
const nodes = (html) => Array.from(new DOMParser().parseFromString(html, "text/html").body.childNodes);

function element(name, className, children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

function text(html) {
  const entities = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&amp;": "&" };
  return html.replace(/<[^>]*>/g, "").replace(/&(?:lt|gt|quot|#x27|amp);/g, (entity) => entities[entity]);
}

// What a search looks at: the row, the question and the turns, but not the prompt, which says the same every time.
function haystack(row) {
  let found = haystacks.get(row);
  if (found === undefined) {
    const { question, rest } = attempt(row);
    found = `${link(row).textContent}\n${text(question)}\n${text(rest)}`.toLowerCase();
    haystacks.set(row, found);
  }
  return found;
}

function show(row) {
  if (current !== null) link(current).removeAttribute("aria-current");
  current = row;
  link(row).setAttribute("aria-current", "true");
  const { question, opening, rest } = attempt(row);
  const prompt = nodes(opening);
  for (const block of prompt) block.open = false;
  const heading = element("h2", "", [`${row.dataset.number} · `, ...link(row).querySelector(".id").cloneNode(true).childNodes]);
  main.replaceChildren(heading, element("p", "question", nodes(question)), ...prompt, ...nodes(rest));
  main.scrollTop = 0;
}

function showNamed() {
  const number = location.hash.slice(1);
  const row = rows.find((candidate) => candidate.dataset.number === number);
  if (row !== undefined && row !== current) {
    show(row);
    row.scrollIntoView({ block: "nearest" });
  }
  return row !== undefined;
}

function move(step) {
  const shown = rows.filter((row) => !row.hidden);
  if (shown.length === 0) return;
  const at = shown.indexOf(current);
  const next = shown[at < 0 ? 0 : Math.min(Math.max(at + step, 0), shown.length - 1)];
  history.replaceState(null, "", link(next).getAttribute("href"));
  show(next);
  link(next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function filter() {
  const value = (name) => filters.elements[name].value;
  const ticked = (name) => filters.elements[name].checked;
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const [verdict, ended, tool, timeout] = [value("verdict"), value("ended"), ticked("tool"), ticked("timeout")];
  const wanted = (row) =>
    (verdict === "" || row.dataset.verdict === verdict) &&
    (ended === "" || row.dataset.ended === ended) &&
    (!tool || row.dataset.tool === "yes") &&
    (!timeout || row.dataset.timeout === "yes") &&
    words.every((word) => haystack(row).includes(word));
  let count = 0;
  for (const { part, rows } of parts) {
    let here = 0;
    for (const row of rows) {
      row.hidden = !wanted(row);
      if (!row.hidden) here += 1;
    }
    part.hidden = here === 0;
    part.style.containIntrinsicBlockSize = `${6.5 * here}rem`; // its height, roughly, until it is laid out
    count += here;
  }
  document.getElementById("count").value = `${count} of ${rows.length} attempts`;
}

function offer(name, values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  for (const [value, count] of [...counts].sort((one, other) => other[1] - one[1])) {
    filters.elements[name].append(new Option(`${value} (${count})`, value));
  }
}

let waiting = 0;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(filter, 120);
});
filters.addEventListener("change", filter);
filters.addEventListener("reset", () => setTimeout(filter));
filters.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", showNamed);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input[type=search]");
  const inList = event.target.closest("nav") !== null;
  const choosing = event.target.matches("select");
  if (event.key === "Escape" && typing) {
    search.value = "";
    filter();
    search.blur();
  } else if (typing ? event.key === "ArrowDown" : (event.key === "j" && !choosing) || (event.key === "ArrowDown" && inList)) {
    event.preventDefault();
    move(1);
  } else if (!typing && ((event.key === "k" && !choosing) || (event.key === "ArrowUp" && inList))) {
    event.preventDefault();
    move(-1);
  } else if (event.key === "/" && !typing) {
    event.preventDefault();
    search.focus();
  }
});

offer("verdict", rows.map((row) => row.dataset.verdict));
offer("ended", rows.map((row) => row.dataset.ended));
filter();
if (!showNamed() && rows.length > 0) show(rows[0]);
