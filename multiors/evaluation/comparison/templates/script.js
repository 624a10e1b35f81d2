"use strict";
// Lists the episodes and opens them. Data reaches the page through textContent alone, never as mark-up.
(() => {
  const PAGE = 50;
  const WORDS = { regressed: "regressed", unscored: "unscored", improved: "improved", failed: "failed", equal: "no change", scored: "scored" };
  const { arms, cards } = JSON.parse(document.getElementById("data").textContent);
  const list = document.getElementById("episodes");
  if (list === null) return;
  const chosen = { source: "", arm: "", kind: "", text: "" };
  let shown = PAGE;

  const find = (id) => document.getElementById(id);

  function make(tag, className, text, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined && text !== null) element.textContent = text;
    element.append(...children);
    return element;
  }

  // -- choosing

  const role = (side) => (arms.length === 1 || side === 1 ? "candidate" : "reference");
  const sidesOf = (card) => card.sides.map((each, side) => [each, side]).filter(([each, side]) => each && (chosen.arm === "" || Number(chosen.arm) === side));

  function isKind(card, kind) {
    const sides = sidesOf(card).map(([each]) => each);
    if (kind === "") return true;
    if (kind === "failed") return sides.some((each) => each.error !== null);
    if (kind === "unscored") return sides.some((each) => each.score === null);
    return card.kind === kind;
  }

  const textOf = (card) => readAll([card.source, card.title, sidesOf(card)]).toLowerCase();

  function readAll(value) {
    if (value === null || typeof value !== "object") return String(value);
    return Object.values(value).map(readAll).join("\n");
  }

  // All filters but that of the outcome, which says how many of these it would leave.
  function select() {
    const needle = chosen.text.toLowerCase();
    return cards.filter((card) =>
      (chosen.source === "" || card.source === chosen.source)
      && sidesOf(card).length > 0
      && (needle === "" || textOf(card).includes(needle)));
  }

  // -- one episode

  function showMessage(message, className) {
    const box = make("article", `message ${className}`);
    const head = make("header", "", null, make("span", "", message.name ? `${message.role} · ${message.name}` : message.role));
    if (message.step) head.append(showWorth(message.step));
    box.append(head);
    if (message.thought) box.append(make("details", "", null, make("summary", "", "thoughts"), showText(message.thought, "text")));
    if (message.text) box.append(showText(message.text, className === "tool" ? "" : "text"));
    for (const call of message.calls ?? []) box.append(make("div", "call", null, make("b", "", call.name), showText(call.arguments, "")));
    return box;
  }

  function showText(text, className) {
    const box = make("pre", className, text);
    box.dir = "auto";
    return box;
  }

  function showWorth(step) {
    const words = make("span");
    if (step.failure) words.append(make("span", "failure", `${step.failure} `));
    words.append(make("span", step.reward === null ? "" : "worth", step.reward === null ? "not scored" : `reward ${step.reward}`));
    words.append(make("span", "", `${step.finished ? " · finished" : ""} · ${step.seconds} s`));
    return words;
  }

  const kindOf = (message) => (["assistant", "tool", "user", "system"].includes(message.role) ? message.role : "other");

  function showSide(side, index, showsPrompt) {
    const box = make("section", `side ${role(index)}`);
    box.append(make("h3", "", null, make("span", "", arms[index]), make("span", "", side.score === null ? `unscored${side.reason ? `: ${side.reason}` : ""}` : side.said)));
    box.append(make("p", "facts", null, ...side.facts.map(([name, value]) => make("span", "", `${name} ${value}`))));
    if (side.error !== null) box.append(make("p", "error", side.error));
    if (showsPrompt) for (const message of side.prompt) box.append(showMessage(message, kindOf(message)));
    for (const message of side.messages) box.append(showMessage(message, kindOf(message)));
    for (const step of side.steps) box.append(showMessage({ role: "tool call", name: step.name, text: step.text, step: step.step, calls: [{ name: "arguments", arguments: step.arguments }] }, "step"));
    if (side.left_out) box.append(make("p", "quiet", `${side.left_out} messages or calls are left out.`));
    if (side.messages.length + side.steps.length === 0) box.append(make("p", "quiet", "Nothing was said."));
    return box;
  }

  function showEpisode(card) {
    const box = make("div", "opened");
    const sides = sidesOf(card);
    const prompts = new Set(sides.map(([side]) => JSON.stringify(side.prompt)));
    if (prompts.size === 1) for (const message of sides[0][0].prompt) box.append(showMessage(message, kindOf(message)));
    box.append(make("div", sides.length > 1 ? "sides two" : "sides", null, ...sides.map(([side, index]) => showSide(side, index, prompts.size > 1))));
    return box;
  }

  // -- the list

  function badge(card) {
    const said = card.sides.map((side) => (side === null ? "not played" : side.score === null ? side.reason ?? "unscored" : side.said));
    if (chosen.arm !== "") return said[Number(chosen.arm)];
    return said.join(" → ");
  }

  function showRow(card) {
    const row = make("div", `episode ${card.kind}`);
    const button = make("button", "", null, make("span", "source", card.source), make("span", "about", card.title), make("span", "badge", badge(card)));
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const isOpen = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!isOpen));
      if (isOpen) row.lastChild.remove();
      else row.append(showEpisode(card));
    });
    row.append(button);
    return row;
  }

  function update() {
    const all = select();
    const found = all.filter((card) => isKind(card, chosen.kind));
    for (const button of find("by-kind").children) {
      const { kind } = button.dataset;
      const number = all.filter((card) => isKind(card, kind)).length;
      button.textContent = `${kind === "" ? "all" : WORDS[kind]} ${number}`;
      button.setAttribute("aria-pressed", String(kind === chosen.kind));
      button.disabled = number === 0 && kind !== chosen.kind;
    }
    find("list").replaceChildren(...found.slice(0, shown).map(showRow));
    find("count").textContent = `${found.length} of ${cards.length} ${list.dataset.noun}`;
    find("more").hidden = found.length <= shown;
    find("more").textContent = `Show ${Math.min(PAGE, found.length - shown)} more`;
  }

  function restart() {
    shown = PAGE;
    update();
  }

  // -- filters

  function fill(id, options, key) {
    const box = find(id);
    if (box === null) return;
    for (const [value, text] of options) {
      const option = make("option", "", text);
      option.value = value;
      box.append(option);
    }
    box.addEventListener("change", () => { chosen[key] = box.value; restart(); });
  }

  function addKinds() {
    const kinds = Object.keys(WORDS).filter((kind) => cards.some((card) => isKind(card, kind)));
    for (const kind of ["", ...kinds]) {
      const button = make("button");
      button.type = "button";
      button.dataset.kind = kind;
      button.addEventListener("click", () => { chosen.kind = kind; restart(); });
      find("by-kind").append(button);
    }
  }

  const sources = [...new Set(cards.map((card) => card.source))];
  fill("by-source", [["", "all"], ...sources.map((name) => [name, name])], "source");
  fill("by-arm", [["", "both"], ...arms.map((name, side) => [String(side), name])], "arm");
  addKinds();
  find("by-text").addEventListener("input", (event) => { chosen.text = event.target.value; restart(); });
  find("more").addEventListener("click", () => { shown += PAGE; update(); });
  document.querySelector(".filters").hidden = false;
  update();
})();
