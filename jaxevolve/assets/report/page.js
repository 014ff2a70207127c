"use strict";

// Charts: the legend shows the values of the step under the pointer, a finger or the arrow keys.
for (const figure of document.querySelectorAll("figure.chart")) {
  const drawing = figure.querySelector("svg[role=img]");
  const columns = [...drawing.querySelectorAll(".hit")];
  const at = figure.querySelector(".at");
  const entries = [...figure.querySelectorAll(".legend li")].map((entry) => ({
    name: entry.querySelector("span").textContent,
    value: entry.querySelector("b"),
  }));
  const usual = [at.textContent, ...entries.map((entry) => entry.value.textContent)];
  const readings = columns.map((column) => {
    const title = column.querySelector("title");
    const [step, ...lines] = title.textContent.split("\n");
    title.remove();  // or the browser would show it as well
    const values = new Map(lines.map((line) => {
      const end = line.lastIndexOf(": ");
      return [line.slice(0, end), line.slice(end + 2)];
    }));
    return [step, ...entries.map((entry) => values.get(entry.name) ?? "–")];
  });
  let current = -1;
  const show = (index) => {
    columns[current]?.classList.remove("on");
    columns[index]?.classList.add("on");
    current = index;
    const [step, ...values] = readings[index] ?? usual;
    at.textContent = step;
    entries.forEach((entry, i) => { entry.value.textContent = values[i]; });
  };
  drawing.tabIndex = 0;
  drawing.addEventListener("pointermove", (event) => {
    const index = columns.indexOf(event.target);
    if (index >= 0 && index !== current) show(index);
  });
  drawing.addEventListener("pointerleave", () => show(-1));
  drawing.addEventListener("blur", () => show(-1));
  drawing.addEventListener("keydown", (event) => {
    const last = columns.length - 1;
    const next = {
      ArrowLeft: current < 0 ? last : Math.max(current - 1, 0),
      ArrowRight: Math.min(current + 1, last),
      Home: 0,
      End: last,
      Escape: -1,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  });
}

// Questions: one of one step at a time, in place of the nested list.
const controls = document.querySelector(".controls");
if (controls) {
  const step = document.getElementById("pick-step");
  const question = document.getElementById("pick-question");
  const groups = [...document.querySelectorAll(".group")];
  const moves = [...controls.querySelectorAll("button")];
  const chosen = () => groups[step.selectedIndex];
  const show = () => {
    for (const group of groups) {
      group.hidden = group !== chosen();
      group.querySelectorAll(".panel").forEach((panel, i) => {
        panel.hidden = i !== question.selectedIndex;
        panel.open = true;
      });
    }
    moves.forEach((move) => {
      const next = step.selectedIndex + Number(move.dataset.move);
      move.disabled = next < 0 || next >= groups.length;
    });
  };
  const fill = () => {
    const names = [...chosen().querySelectorAll("summary")].map((name) => name.textContent);
    const kept = Math.max(0, Math.min(question.selectedIndex, names.length - 1));
    question.replaceChildren(...names.map((name) => new Option(name)));
    question.selectedIndex = kept;
    show();
  };
  moves.forEach((move) => move.addEventListener("click", () => {
    step.selectedIndex += Number(move.dataset.move);
    fill();
  }));
  step.addEventListener("change", fill);
  question.addEventListener("change", show);
  document.documentElement.classList.add("scripted");
  controls.hidden = false;
  fill();
}
