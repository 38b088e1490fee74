"use strict";
(() => {
const table = document.getElementById("candidates"), body = table.tBodies[0];
const value = (row, place) => {
  const cell = row.cells[place], number = cell.dataset.value;
  return number === undefined ? cell.textContent : number === "" ? Infinity : Number(number);
};
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

[...table.tHead.rows[0].cells].forEach((head, place) => {
  const button = document.createElement("button");
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(value(a, place), value(b, place)));
    body.append(...rows);
  });
});

const pick = document.getElementById("pick"), hidden = new Set();
for (const status of new Set([...body.rows].map((row) => row.dataset.status))) {
  const button = document.createElement("button");
  const count = [...body.rows].filter((row) => row.dataset.status === status).length;
  button.textContent = `${status} ${count}`;
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    hidden.has(status) ? hidden.delete(status) : hidden.add(status);
    button.setAttribute("aria-pressed", String(!hidden.has(status)));
    for (const row of body.rows) row.hidden = hidden.has(row.dataset.status);
  });
  pick.append(button);
}
})();
