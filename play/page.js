"use strict";
// The page: what is typed goes to the module, what it answers is drawn. A rule, its sizes and the part that is looked at are
// kept in the address (after #), so that a link carries them.

const by = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const grouped = (number) => Number(number).toLocaleString("en");
const SIZES = ["q_len", "kv_len", "block", "heads", "h"];
const DEFAULTS = { rule: "q_idx >= kv_idx", entry: "", tables: "", q_len: 1024, kv_len: 1024, block: 128, heads: 8, h: 0 };
const OUTCOMES = ["empty", "full", "split", "evaluated"];

let quire;        // the module
let gallery = [];
let state = { ...DEFAULTS };
let view = { q: 0, kv: 0, scale: 1 };  // first query and key, elements per pixel
let rule = null;  // what play_read answered, or null
let drawn = null; // cells of the last picture
let proof = null; // {steps, shown} while it is watched
let proved = null;

function call(name, types, values) {
  return JSON.parse(quire.ccall(name, "string", types, values));
}

function showError(text) {
  by("error").hidden = !text;
  by("error").textContent = text || "";
}

// ---- the address

function writeAddress() {
  const parts = new URLSearchParams();
  for (const key of Object.keys(DEFAULTS)) if (String(state[key]) !== String(DEFAULTS[key])) parts.set(key, state[key]);
  history.replaceState(null, "", parts.toString() ? `#${parts}` : location.pathname + location.search);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  state = { ...DEFAULTS };
  for (const [key, value] of parts) if (key in DEFAULTS) state[key] = SIZES.includes(key) ? Number(value) : value;
}

// ---- reading a rule

function fillFields() {
  by("rule").value = state.rule;
  by("tables").value = state.tables;
  for (const key of SIZES) by(key).value = state[key];
  if (state.tables) by("tables_box").open = true;
  for (const button of document.querySelectorAll("#gallery button"))
    button.classList.toggle("chosen", button.dataset.name === state.entry);
}

function badSize() {
  for (const key of SIZES) {
    const least = key === "h" ? 0 : 1;
    const most = Number(by(key).max);
    if (!Number.isInteger(state[key]) || state[key] < least || state[key] > most)
      return `${by(key).parentElement.textContent.trim()} must be a whole number from ${least} to ${grouped(most)}`;
  }
  if (state.h >= state.heads) return `h must be below heads; got ${state.h} and ${state.heads}`;
  return "";
}

function read() {
  stopProof();
  const wrong = badSize();
  const answer = wrong ? { error: wrong } : call("play_read",
    ["string", "string", "string", "number", "number", "number", "number", "number", "number"],
    [state.rule, state.entry, state.tables, state.q_len, state.kv_len, state.heads, 1, 0, state.h]);
  rule = answer.error ? null : answer;
  showError(answer.error);
  if (!rule) return;
  by("explained").textContent = rule.explained;
  if (rule.without_contents.length) {
    const names = rule.without_contents.join(", ");
    showError(`to draw it, give the contents of ${names} below, e.g.\n${rule.without_contents[0]} = i32[kv_len]: kv_idx // 512`);
    by("tables_box").open = true;
    rule = null;
    return;
  }
  writeAddress();
  prove();
}

function prove() {
  proved = null;
  const rows = [];
  if (rule.mask) {
    const answer = call("play_prove", ["number", "number"], [state.block, 0]);
    if (answer.error) {
      showError(answer.error);
      rule = null;
      return;
    }
    proved = answer;
    rows.push(["sparsity", `${answer.sparsity.toFixed(2)} %`],
      ["blocks full", grouped(answer.full)], ["blocks partial", grouped(answer.partial)], ["blocks empty", grouped(answer.empty)],
      ["rectangles bounded", grouped(answer.rectangles)], ["elements looked at", grouped(answer.evaluated)],
      ["of so many", grouped(answer.area)], ["bytes of the mask", grouped(answer.bytes)], ["proved in", `${answer.ms.toFixed(1)} ms`]);
  } else {
    rows.push(["kind", "score mod"]);
  }
  by("numbers").replaceChildren(...rows.map(([name, value]) => {
    const row = document.createElement("tr");
    for (const text of [name, value]) row.insertCell().textContent = text;
    return row;
  }));
  by("proof").disabled = !rule.mask;
  draw();
}

// ---- drawing

function canvasSize() {
  const canvas = by("view");
  const width = Math.max(64, Math.floor(canvas.clientWidth)), height = Math.max(64, Math.floor(canvas.clientHeight));
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  return { width, height };
}

function wholeView() {
  const { width, height } = canvasSize();
  const scale = Math.max(state.kv_len / width, state.q_len / height);
  view = { q: 0, kv: 0, scale };
}

// A cell is a power of two of elements, about a pixel or more.
function cellSize() {
  return 2 ** Math.max(0, Math.ceil(Math.log2(view.scale)));
}

function clampView() {
  const { width, height } = canvasSize();
  const largest = 1.2 * Math.max(state.kv_len / width, state.q_len / height);
  view.scale = Math.min(Math.max(view.scale, 1 / 32), Math.max(largest, 1 / 32));
  view.q = Math.min(Math.max(view.q, 0), Math.max(0, state.q_len - height * view.scale / 2));
  view.kv = Math.min(Math.max(view.kv, 0), Math.max(0, state.kv_len - width * view.scale / 2));
}

function rgb(text) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = text;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data;
}

function heat(value, most) {
  const t = most > 0 ? Math.max(-1, Math.min(1, value / most)) : 0;
  const [full, other, empty] = [rgb(colour("full")), rgb(colour("split")), rgb(colour("empty"))];
  const towards = t >= 0 ? full : other, part = Math.sqrt(Math.abs(t));
  return [0, 1, 2].map((i) => empty[i] + (towards[i] - empty[i]) * part);
}

function cellPixels(address, rows, cols) {
  const pixels = new ImageData(cols, rows);
  const put = (i, [r, g, b]) => pixels.data.set([r, g, b, 255], 4 * i);
  if (rule.mask) {
    const kinds = quire.HEAPU8.subarray(address, address + rows * cols);
    const palette = ["empty", "partial", "full", "outside"].map((name) => rgb(colour(name)));
    kinds.forEach((kind, i) => put(i, palette[kind]));
    drawn.values = Uint8Array.from(kinds);
  } else {
    const values = Float32Array.from(quire.HEAPF32.subarray(address / 4, address / 4 + rows * cols));
    let most = 0;
    for (const value of values) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
    const outside = rgb(colour("outside")), hidden = rgb(colour("paper"));
    const shades = Array.from({ length: 511 }, (_, i) => heat((i - 255) / 255, 1));
    values.forEach((value, i) => put(i, Number.isNaN(value) ? outside : value === -Infinity ? hidden
      : shades[255 + Math.round(255 * (most > 0 ? Math.max(-1, Math.min(1, value / most)) : 0))]));
    Object.assign(drawn, { values, most });
  }
  return pixels;
}

function legend() {
  const entry = (name, text) => `<span><i style="background:${colour(name)}"></i>${text}</span>`;
  if (proof) return OUTCOMES.map((name) => entry(name, name)).join("");
  if (!rule.mask) return entry("split", `−${drawn.most.toPrecision(3)}`) + entry("empty", "0") + entry("full", `+${drawn.most.toPrecision(3)}`);
  return entry("full", "visible") + (cellSize() > 1 ? entry("partial", "partly") : "") + entry("empty", "hidden");
}

function draw() {
  if (!rule) return;
  clampView();
  const { width, height } = canvasSize();
  const context = by("view").getContext("2d");
  const cell = cellSize();
  const q = Math.floor(view.q / cell) * cell, kv = Math.floor(view.kv / cell) * cell;
  const rows = Math.ceil((view.q + height * view.scale - q) / cell), cols = Math.ceil((view.kv + width * view.scale - kv) / cell);
  const begin = performance.now();
  const answer = call("play_view", ["number", "number", "number", "number", "number", "number"], [q, kv, cell, rows, cols, 0]);
  if (answer.error) {
    showError(answer.error);
    return;
  }
  drawn = { q, kv, cell, rows, cols, ms: 0 };
  const scratch = document.createElement("canvas");
  Object.assign(scratch, { width: cols, height: rows });
  scratch.getContext("2d").putImageData(cellPixels(answer.cells, rows, cols), 0, 0);
  context.imageSmoothingEnabled = false;
  context.clearRect(0, 0, width, height);
  const size = cell / view.scale;
  if (proof) context.globalAlpha = .25;
  context.drawImage(scratch, (kv - view.kv) / view.scale, (q - view.q) / view.scale, cols * size, rows * size);
  context.globalAlpha = 1;
  if (by("show_blocks").checked && rule.mask && !proof) blockLines(context, width, height);
  if (proof) proofSteps(context);
  drawn.ms = performance.now() - begin;
  by("legend").innerHTML = legend();
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function blockLines(context, width, height) {
  const step = state.block / view.scale;
  if (step < 6) return;
  context.strokeStyle = colour("line");
  context.beginPath();
  const lines = (first, length, limit, put) => {
    for (let at = Math.ceil(first / state.block) * state.block; at <= limit && (at - first) / view.scale <= length; at += state.block)
      put(Math.round((at - first) / view.scale) + .5);
  };
  const right = Math.min(width, (state.kv_len - view.kv) / view.scale), bottom = Math.min(height, (state.q_len - view.q) / view.scale);
  lines(view.kv, width, state.kv_len, (x) => { context.moveTo(x, 0); context.lineTo(x, bottom); });
  lines(view.q, height, state.q_len, (y) => { context.moveTo(0, y); context.lineTo(right, y); });
  context.stroke();
}

// ---- the proof

function proofSteps(context) {
  for (const [q0, q1, kv0, kv1, outcome] of proof.steps.slice(0, proof.shown)) {
    const x = (kv0 - view.kv) / view.scale, y = (q0 - view.q) / view.scale;
    const w = (kv1 - kv0) / view.scale, h = (q1 - q0) / view.scale;
    context.globalAlpha = outcome === 2 ? .05 : .8;
    context.fillStyle = colour(OUTCOMES[outcome]);
    context.fillRect(x, y, w, h);
    context.globalAlpha = 1;
    context.strokeStyle = colour(OUTCOMES[outcome]);
    context.strokeRect(x + .5, y + .5, Math.max(w - 1, 0), Math.max(h - 1, 0));
  }
}

function stopProof() {
  if (proof) cancelAnimationFrame(proof.frame);
  proof = null;
  by("proof").textContent = "watch the proof";
}

function watchProof() {
  if (proof) {
    stopProof();
    draw();
    return;
  }
  if (!proved) return;
  // Of so many blocks that single rectangles can be seen.
  const most = 96, block = state.block * Math.ceil(Math.max(state.q_len, state.kv_len) / (state.block * most));
  proof = { steps: call("play_prove", ["number", "number"], [block, 40000]).steps, shown: 0, frame: 0 };
  by("proof").textContent = "stop";
  const frames = 240;
  const next = () => {
    proof.shown = Math.min(proof.steps.length, proof.shown + Math.max(1, Math.ceil(proof.steps.length / frames)));
    draw();
    if (proof && proof.shown < proof.steps.length) proof.frame = requestAnimationFrame(next);
  };
  next();
}

// ---- moving about

function zoom(factor, x, y) {
  const { width, height } = canvasSize();
  const at = { x: x ?? width / 2, y: y ?? height / 2 };
  const q = view.q + at.y * view.scale, kv = view.kv + at.x * view.scale;
  view.scale *= factor;
  clampView();
  Object.assign(view, { q: q - at.y * view.scale, kv: kv - at.x * view.scale });
  draw();
}

function pointAt(event) {
  if (!rule || !drawn) return;
  const q = Math.floor(view.q + event.offsetY * view.scale), kv = Math.floor(view.kv + event.offsetX * view.scale);
  const inside = q >= 0 && kv >= 0 && q < state.q_len && kv < state.kv_len;
  const value = inside ? drawn.values[Math.floor((q - drawn.q) / drawn.cell) * drawn.cols + Math.floor((kv - drawn.kv) / drawn.cell)] : null;
  const what = !inside ? "" : rule.mask ? ["hidden", "partly visible", "visible", ""][value] : value === -Infinity ? "hidden" : value?.toPrecision(4);
  by("where").textContent = inside ? `q ${grouped(q)}  kv ${grouped(kv)}  ${what ?? ""}` : "";
}

function listenToView() {
  const canvas = by("view");
  let last = null;
  canvas.addEventListener("pointerdown", (event) => { last = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { last = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (last) {
      view.kv -= (event.clientX - last[0]) * view.scale;
      view.q -= (event.clientY - last[1]) * view.scale;
      last = [event.clientX, event.clientY];
      draw();
    }
    pointAt(event);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(2 ** (event.deltaY / 300), event.offsetX, event.offsetY);
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 64 * view.scale;
    const moves = { ArrowLeft: [0, -step], ArrowRight: [0, step], ArrowUp: [-step, 0], ArrowDown: [step, 0] };
    if (event.key === "+") zoom(.5);
    else if (event.key === "-") zoom(2);
    else if (moves[event.key]) {
      view.q += moves[event.key][0];
      view.kv += moves[event.key][1];
      draw();
    } else return;
    event.preventDefault();
  });
}

// ---- the gallery

function choose(entry) {
  state = { ...state, entry: entry.name, tables: "", q_len: Math.max(entry.q_len, 64), kv_len: Math.max(entry.kv_len, 64),
    heads: entry.heads, h: 0, block: Math.max(8, Math.min(128, entry.q_len / 8)) };
  state.block = Math.floor(state.block);
  state.rule = call("play_entry_text", ["string", "number", "number", "number", "number"],
    [entry.name, state.q_len, state.kv_len, state.heads, 1]).text;
  fillFields();
  wholeView();
  read();
}

function listGallery() {
  const wanted = by("filter").value.toLowerCase();
  by("gallery").replaceChildren(...gallery.filter((entry) => `${entry.name} ${entry.about}`.toLowerCase().includes(wanted)).map((entry) => {
    const line = document.createElement("li"), button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: entry.name.replaceAll("_", " "), title: `${entry.about}\n${entry.reference}` });
    button.dataset.name = entry.name;
    button.classList.toggle("score", !entry.mask);
    button.addEventListener("click", () => choose(entry));
    line.append(button);
    return line;
  }));
}

// ---- beginning

function listenToFields() {
  let waiting = 0;
  const soon = (change) => () => {
    change();
    clearTimeout(waiting);
    waiting = setTimeout(read, 120);
  };
  by("rule").addEventListener("input", soon(() => { state.rule = by("rule").value; }));
  by("tables").addEventListener("input", soon(() => { state.tables = by("tables").value; }));
  for (const key of SIZES) {
    by(key).addEventListener("input", soon(() => {
      state[key] = Number(by(key).value);
      if (key === "q_len" || key === "kv_len") wholeView();
    }));
  }
  by("million").addEventListener("click", () => {
    Object.assign(state, { q_len: 2 ** 20, kv_len: 2 ** 20, block: Math.max(state.block, 128) });
    fillFields();
    wholeView();
    read();
  });
  by("filter").addEventListener("input", listGallery);
  by("whole").addEventListener("click", () => { wholeView(); draw(); });
  by("in").addEventListener("click", () => zoom(.5));
  by("out").addEventListener("click", () => zoom(2));
  by("show_blocks").addEventListener("change", draw);
  by("proof").addEventListener("click", watchProof);
  by("link").addEventListener("click", async () => {
    writeAddress();
    try {
      await navigator.clipboard.writeText(location.href);
      by("link").textContent = "copied";
    } catch {
      by("link").textContent = "it is in the address bar";
    }
    setTimeout(() => { by("link").textContent = "copy a link"; }, 1500);
  });
  addEventListener("resize", draw);
  addEventListener("hashchange", () => { readAddress(); fillFields(); wholeView(); read(); });
}

loadQuire().then((module) => {
  quire = module;
  gallery = call("play_gallery", [], []);
  listGallery();
  listenToFields();
  listenToView();
  readAddress();
  fillFields();
  wholeView();
  read();
  document.body.dataset.ready = "yes";
});
