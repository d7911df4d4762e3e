"use strict";
// Parts of every page: a head with answer, title, facts, notes and what is said of the measurement; tabs.

function fillHead(title) {
  document.title = `${title} – memleak-android`;
  document.getElementById("title").textContent = title;
  const answer = document.getElementById("answer");
  if (answer && data.answer) {
    answer.textContent = data.answer;
    answer.className = data.state;
    answer.hidden = false;
  }
  document.getElementById("limit").hidden = !data.isOverLimit;
  const measured = document.getElementById("measured");
  measured.textContent = data.measured;
  measured.classList.toggle("incomplete", !data.isComplete);
  const why = document.getElementById("why");
  why.textContent = data.why;
  why.hidden = !data.why;
  for (const [name, text] of data.facts) {
    const row = element("div");
    row.append(element("dt", name), element("dd", text));
    document.getElementById("facts").append(row);
  }
  const notes = document.getElementById("notes");
  notes.hidden = !data.notes.length;
  notes.open = data.notes.length <= 3;
  notes.querySelector("summary").textContent = `${data.notes.length} note${data.notes.length === 1 ? "" : "s"}`;
  for (const note of data.notes) notes.querySelector("ul").append(element("li", note));
}

// opened: called with a tab once its view is shown. Returns a function that opens a tab by its name, if it exists.
function makeTabs(opened) {
  const tabs = [...document.querySelectorAll("[role=tab]")].filter((tab) => !tab.hidden);
  function open(tab) {
    for (const one of tabs) {
      const isOpen = one === tab;
      one.setAttribute("aria-selected", String(isOpen));
      one.tabIndex = isOpen ? 0 : -1;
      document.getElementById(one.getAttribute("aria-controls")).hidden = !isOpen;
    }
    opened(tab);
  }
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => open(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      open(next);
      next.focus();
    });
  });
  return (name) => {
    const wanted = tabs.find((tab) => tab.id === `tab-${name}`);
    if (wanted) open(wanted);
  };
}
