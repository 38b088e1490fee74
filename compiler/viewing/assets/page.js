
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const KINDS = data.kinds;
const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const RAMP = [[253, 246, 213], [249, 214, 129], [241, 163, 64], [196, 92, 40], [120, 38, 45], [62, 14, 48]];
const options = { weights: false, colour: "kind" };
let palette = {};

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties || {});
  for (const child of children) if (child !== null) made.append(child);
  return made;
}

function amount(number, unit) {
  if (number === null) return "unknown";
  const steps = ["", "k", "M", "G", "T", "P", "E"];
  let step = 0, left = number;
  while (left >= 1000 && step < steps.length - 1) { left /= 1000; step += 1; }
  return `${step && left < 100 ? left.toPrecision(3) : Math.round(left)} ${steps[step]}${unit}`;
}

// Centers in order that do not overlap, nearest to those wanted (isotonic regression by pooling adjacent violators).
function spread(wanted, widths, gap) {
  const offsets = [0];
  for (let k = 1; k < wanted.length; k++) offsets.push(offsets[k - 1] + (widths[k - 1] + widths[k]) / 2 + gap);
  const pools = [];
  wanted.forEach((at, k) => {
    let mean = at - offsets[k], size = 1;
    while (pools.length && pools[pools.length - 1][0] > mean) {
      const [other, count] = pools.pop();
      mean = (mean * size + other * count) / (size + count);
      size += count;
    }
    pools.push([mean, size]);
  });
  const centers = [];
  for (const [mean, size] of pools) for (let k = 0; k < size; k++) centers.push(mean + offsets[centers.length]);
  return centers;
}

// -- a graph, unpacked

class Graph {
  constructor(raw, number) {
    this.raw = raw;
    this.number = number;
    const text = raw.texts;
    this.boxes = raw.boxes.map(([shape, title, origin, inputs, outputs, rows], id) => {
      const [op, kind, types, attrs, flops, bytes, formula] = raw.shapes[shape];
      return {
        id, op: text[op], kind: KINDS[kind], title: text[title], origin: text[origin], inputs, outputs, flops, bytes,
        types: types.map((one) => text[one]), formula: text[formula],
        attrs: attrs.map(([name, value]) => [text[name], text[value]]),
        rows: rows.map(([operand, label, type, via, from]) => ({
          operand, label: text[label], type: text[type], via: text[via], origin: text[from],
        })),
      };
    });
    this.blocks = raw.blocks.map(([parent, run, place, count, label, layout, items, inputs, outputs, nets], id) => (
      { id, parent, run, place, count, label, layout: raw.layouts[layout], items, inputs, outputs, nets }));
    this.madeBy = new Map();
    this.readers = new Map();
    this.homes = new Array(this.boxes.length).fill(0);
    for (const box of this.boxes) {
      for (const value of box.outputs) this.madeBy.set(value, box.id);
      for (const value of new Set(box.inputs)) {
        if (!this.readers.has(value)) this.readers.set(value, []);
        this.readers.get(value).push(box.id);
      }
    }
    for (let k = this.blocks.length - 1; k >= 0; k--) {
      const block = this.blocks[k];
      block.size = 0; block.flops = 0; block.bytes = 0;
      for (const item of block.items) {
        const one = item >= 0 ? this.boxes[item] : this.blocks[~item];
        if (item >= 0) this.homes[item] = k;
        block.size += item >= 0 ? 1 : one.size;
        block.flops += one.flops || 0;
        block.bytes += one.bytes || 0;
      }
    }
  }

  at(item) { return item >= 0 ? this.boxes[item] : this.blocks[~item]; }

  defaultOpen() { return new Set(this.blocks.filter((one) => one.place === 0).map((one) => one.id)); }

  values(box) { return box.outputs.map((value) => `%${value}`).join(", "); }

  height(box) {
    return 27 + 15 * box.types.length + (options.weights && box.rows.length ? 14 * box.rows.length + 3 : 0);
  }

  // Everything placed, for these blocks open. The same as scene.py, which says how.
  scene(opened) {
    const measured = new Map();
    for (let k = this.blocks.length - 1; k >= 0; k--) if (opened.has(k)) measured.set(k, this.measure(k, measured));
    const whole = measured.get(0);
    const scene = { width: whole.width, height: whole.height, places: [], lines: [], byItem: new Map() };
    const waiting = [[0, 0, 0, 0]];
    while (waiting.length) this.place(...waiting.pop(), measured, scene, waiting);
    scene.places.sort((a, b) => (a.item >= 0) - (b.item >= 0) || a.depth - b.depth);
    for (const place of scene.places) scene.byItem.set(place.item, place);
    return scene;
  }

  measure(number, measured) {
    const block = this.blocks[number], layout = block.layout, inside = number > 0;
    const x = [...layout.x], widths = [...layout.widths], heights = new Array(x.length).fill(0);
    const tops = new Array(x.length).fill(0), wider = new Set(), rows = [];
    block.items.forEach((item, cell) => {
      if (item >= 0) heights[cell] = this.height(this.boxes[item]);
      else if (measured.has(~item)) {
        heights[cell] = measured.get(~item).height;
        widths[cell] = Math.max(measured.get(~item).width, data.foldedWidth);
        wider.add(layout.ranks[cell]);
      } else heights[cell] = data.foldedHeight;
    });
    layout.ranks.forEach((rank, cell) => { (rows[rank] = rows[rank] || []).push(cell); });
    const given = block.items.length + block.inputs.length + block.outputs.length;
    let y = inside ? data.header : 0;
    rows.forEach((row, rank) => {
      row.sort((a, b) => x[a] - x[b] || a - b);
      if (wider.has(rank)) {
        const centers = spread(row.map((cell) => x[cell]), row.map((cell) => widths[cell]), data.gap);
        row.forEach((cell, k) => { x[cell] = centers[k]; });
      }
      let tall = 0;
      for (const cell of row) tall = Math.max(tall, heights[cell]);
      for (const cell of row) {
        if (cell >= given) heights[cell] = tall;
        tops[cell] = y + (tall - heights[cell]) / 2;
      }
      y += tall + (rank < rows.length - 1 ? data.rankGap : 0);
    });
    const padding = inside ? data.padding : 0;
    let left = 0, right = 0;
    x.forEach((at, cell) => {
      left = cell ? Math.min(left, at - widths[cell] / 2) : at - widths[cell] / 2;
      right = cell ? Math.max(right, at + widths[cell] / 2) : at + widths[cell] / 2;
    });
    left -= padding; right += padding;
    const more = inside ? Math.max(data.foldedWidth - (right - left), 0) / 2 : 0;
    return { x: x.map((at) => at - left + more), widths, tops, heights, width: right - left + 2 * more, height: y + padding };
  }

  place(number, left, top, depth, measured, scene, waiting) {
    const block = this.blocks[number], at = measured.get(number), layout = block.layout;
    const count = block.items.length, firstBottom = count + block.inputs.length, given = firstBottom + block.outputs.length;
    block.items.forEach((item, cell) => {
      const open = item < 0 && measured.has(~item);
      const x = left + at.x[cell] - at.widths[cell] / 2, y = top + at.tops[cell];
      scene.places.push({ item, x, y, w: at.widths[cell], h: at.heights[cell], depth, open });
      if (open) waiting.push([~item, x + (at.widths[cell] - measured.get(~item).width) / 2, y, depth + 1]);
    });
    const end = (cell, port, leaving) => {
      let x = at.x[cell], y = at.tops[cell] + (leaving ? at.heights[cell] : 0);
      const item = cell < count ? block.items[cell] : 0;
      if (item < 0 && measured.has(~item)) {
        const inner = measured.get(~item), its = this.blocks[~item];
        x += inner.x[its.items.length + port + (leaving ? its.inputs.length : 0)] - inner.width / 2;
      } else if (cell >= firstBottom && cell < given) y = at.height;
      else if (cell >= count && cell < firstBottom) y = 0;
      return [left + x, top + y];
    };
    const values = block.nets.map(([cell, outlet]) => {
      if (cell >= count) return block.inputs[cell - count];
      const item = block.items[cell];
      return (item >= 0 ? this.boxes[item] : this.blocks[~item]).outputs[outlet];
    });
    const add = (list, far) => {
      for (let k = 0; k < list.length; k += 4) {
        const [a, b, net, port] = [list[k], list[k + 1], list[k + 2], list[k + 3]];
        const [source, outlet] = block.nets[net];
        const [x1, y1] = end(a, a === source ? outlet : 0, true), [x2, y2] = end(b, port, false);
        scene.lines.push({ value: values[net], x1, y1, x2, y2, bottom: b >= given ? y2 + at.heights[b] : y2, tip: b < count, far });
      }
    };
    add(layout.steps, false);
    add(layout.far, true);
  }
}

// -- a graph on a canvas

class View {
  constructor(graph) {
    this.graph = graph;
    this.opened = graph.defaultOpen();
    this.camera = { x: 0, y: 0, k: 1 };
    this.selected = null;
    this.found = new Set();
    this.canvas = element("canvas", { tabIndex: 0 });
    this.canvas.setAttribute("role", "application");
    this.caption = element("div", { className: "caption" });
    this.legend = element("div", { className: "legend" });
    this.pane = element("div", { className: "pane" }, this.canvas, this.caption, this.legend);
    this.context = this.canvas.getContext("2d");
    this.listen();
  }

  compose() {
    this.scene = this.graph.scene(this.opened);
    const shown = this.scene.places.filter((one) => one.item >= 0).length;
    this.canvas.dataset.shown = shown;
    const raw = this.graph.raw, nodes = Object.values(raw.counts).reduce((a, b) => a + b, 0);
    const sizes = Object.entries(raw.sizes).map(([name, size]) => `${name}=${size}`).join(", ");
    const facts = [`${nodes} nodes`, amount(raw.total[0], "FLOPs"), amount(raw.total[1], "B moved") + (sizes ? ` at ${sizes}` : "")];
    if (raw.dead) facts.push(`${raw.dead} unused`);
    this.caption.replaceChildren(element("b", { textContent: label(this.graph) }), ` · ${facts.join(" · ")}`);
    this.canvas.setAttribute("aria-label", `${raw.name}: ${shown} of ${this.graph.boxes.length} nodes shown`);
    this.paint();
  }

  paint() {
    if (!this.waiting) {
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    }
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, box = this.pane.getBoundingClientRect();
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    this.ratio = ratio;
    this.size = [box.width, box.height];
    this.draw();  // at once: a new size has cleared the canvas
  }

  fit() {
    const [w, h] = this.size, s = this.scene;
    const k = Math.min((w - 48) / s.width, 1);
    this.camera.k = Math.max(Math.min(k, Math.max((h - 110) / s.height, 0.55)), 0.02);
    this.camera.x = s.width / 2 - w / 2 / this.camera.k;
    const tall = s.height * this.camera.k;
    this.camera.y = tall < h - 100 ? s.height / 2 - h / 2 / this.camera.k : -52 / this.camera.k;
    this.paint();
  }

  all() {
    const [w, h] = this.size, s = this.scene;
    this.camera.k = Math.max(Math.min((w - 48) / s.width, (h - 110) / s.height, 1), 0.005);
    this.camera.x = s.width / 2 - w / 2 / this.camera.k;
    this.camera.y = s.height / 2 - h / 2 / this.camera.k;
    this.paint();
  }

  zoom(factor, px, py) {
    const c = this.camera, k = Math.min(Math.max(c.k * factor, 0.005), 4);
    c.x += px / c.k - px / k;
    c.y += py / c.k - py / k;
    c.k = k;
    this.paint();
  }

  center(item) {
    const place = this.scene.byItem.get(item), c = this.camera;
    if (!place) return;
    c.k = Math.max(c.k, 0.7);
    c.x = place.x + place.w / 2 - this.size[0] / 2 / c.k;
    c.y = place.y + Math.min(place.h, this.size[1] / c.k) / 2 - this.size[1] / 2 / c.k;
    this.paint();
  }

  reveal(item) {
    let block = item >= 0 ? this.graph.homes[item] : this.graph.blocks[~item].parent, changed = false;
    for (; block > 0; block = this.graph.blocks[block].parent) {
      changed = changed || !this.opened.has(block);
      this.opened.add(block);
    }
    if (changed) { this.compose(); outline(); }
  }

  // Open or fold, and keep the block where it is on the screen.
  toggle(number) {
    const before = this.scene.byItem.get(~number);
    if (this.opened.has(number)) this.opened.delete(number); else this.opened.add(number);
    if (this.selected !== null && this.selected >= 0 && !this.visible(this.selected)) select(this, ~number);
    this.compose();
    const after = this.scene.byItem.get(~number);
    if (before && after) {
      this.camera.x += after.x + after.w / 2 - before.x - before.w / 2;
      this.camera.y += after.y - before.y;
    }
    outline();
  }

  visible(item) {
    for (let block = this.graph.homes[item]; block > 0; block = this.graph.blocks[block].parent) {
      if (!this.opened.has(block)) return false;
    }
    return true;
  }

  hit(px, py) {
    const x = px / this.camera.k + this.camera.x, y = py / this.camera.k + this.camera.y;
    for (let k = this.scene.places.length - 1; k >= 0; k--) {
      const p = this.scene.places[k];
      if (x >= p.x && x <= p.x + p.w && y >= p.y && y <= p.y + p.h) return p;
    }
    return null;
  }

  listen() {
    const canvas = this.canvas, pointers = new Map();
    let moved = 0, pinch = 0;
    const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, at(event));
      moved = 0; pinch = 0;
      canvas.classList.add("drag");
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!pointers.has(event.pointerId)) return;
      const [x, y] = at(event), [ox, oy] = pointers.get(event.pointerId);
      pointers.set(event.pointerId, [x, y]);
      if (pointers.size === 2) {
        const [a, b] = [...pointers.values()], reach = Math.hypot(a[0] - b[0], a[1] - b[1]);
        if (pinch) this.zoom(reach / pinch, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        pinch = reach; moved = 9;
        return;
      }
      moved += Math.abs(x - ox) + Math.abs(y - oy);
      this.camera.x -= (x - ox) / this.camera.k;
      this.camera.y -= (y - oy) / this.camera.k;
      this.paint();
    });
    const up = (event) => {
      if (pointers.delete(event.pointerId) && event.type === "pointerup" && moved < 4) {
        const place = this.hit(...at(event));
        select(this, place ? place.item : null);
      }
      canvas.classList.remove("drag");
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("dblclick", (event) => {
      const place = this.hit(...at(event));
      if (place && place.item < 0) this.toggle(~place.item);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 18 : 1;
      this.zoom(Math.exp(-Math.max(Math.min(event.deltaY * unit, 120), -120) * 0.0022), ...at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const [w, h] = this.size, item = this.selected;
    const handled = {
      "+": () => this.zoom(1.25, w / 2, h / 2), "=": () => this.zoom(1.25, w / 2, h / 2), "-": () => this.zoom(0.8, w / 2, h / 2),
      f: () => this.all(), Escape: () => select(this, null),
      Enter: () => item !== null && item < 0 && this.toggle(~item),
      ArrowDown: () => this.step(1), ArrowUp: () => this.step(-1), ArrowRight: () => this.aside(1), ArrowLeft: () => this.aside(-1),
    }[event.key];
    if (handled && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); handled(); }
  }

  step(way) {
    const graph = this.graph;
    let next = 0;
    if (this.selected !== null) {
      const one = graph.at(this.selected);
      const near = way > 0 ? one.outputs.flatMap((value) => graph.readers.get(value) || []) : one.inputs.map((value) => graph.madeBy.get(value));
      if (!near.length) return;
      next = near[0];
    }
    go(this, next);
  }

  aside(way) {
    const here = this.scene.byItem.get(this.selected);
    if (!here) return;
    let best = null;
    for (const one of this.scene.places) {
      const near = (one.x - here.x) * way;
      if (!one.open && near > 1 && Math.abs(one.y - here.y) < 60 && (!best || near < (best.x - here.x) * way)) best = one;
    }
    if (best) go(this, best.item);
  }

  // -- painting

  draw() {
    const ctx = this.context, c = this.camera, [w, h] = this.size, scene = this.scene;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.fillStyle = palette.paper;
    ctx.fillRect(0, 0, w, h);
    ctx.setTransform(this.ratio * c.k, 0, 0, this.ratio * c.k, -c.x * c.k * this.ratio, -c.y * c.k * this.ratio);
    const seen = { left: c.x, top: c.y, right: c.x + w / c.k, bottom: c.y + h / c.k };
    const inside = (p) => p.x < seen.right && p.x + p.w > seen.left && p.y < seen.bottom && p.y + p.h > seen.top;
    for (const p of scene.places) if (p.item < 0 && inside(p)) this.drawBlock(ctx, p);
    this.drawLines(ctx, seen);
    ctx.textBaseline = "alphabetic";
    for (const p of scene.places) if (p.item >= 0 && inside(p)) this.drawBox(ctx, p);
  }

  drawLines(ctx, seen) {
    const one = this.selected === null ? null : this.graph.at(this.selected);
    const from = new Set(one ? one.outputs : []), into = new Set(one ? one.inputs : []), quiet = new Path2D();
    const special = [], tips = [], k = this.camera.k;
    for (const line of this.scene.lines) {
      if (Math.max(line.bottom, line.y1) < seen.top || Math.min(line.y1, line.y2) > seen.bottom ||
          Math.max(line.x1, line.x2) < seen.left || Math.min(line.x1, line.x2) > seen.right) continue;
      const lit = from.has(line.value) || into.has(line.value);
      if (lit) special.push(line);
      else if (!line.far) {
        trace(quiet, line);
        if (line.tip && k > 0.3) tips.push(line);
      }
    }
    ctx.lineWidth = Math.max(1.2, 0.6 / k);
    ctx.strokeStyle = ctx.fillStyle = palette.edge;
    ctx.stroke(quiet);
    for (const line of tips) tip(ctx, line);
    ctx.lineWidth = Math.max(2.4, 1.4 / k);
    for (const line of special) {
      const path = new Path2D();
      trace(path, line);
      ctx.strokeStyle = ctx.fillStyle = from.has(line.value) ? palette.from : palette.into;
      ctx.setLineDash(line.far ? [6, 6] : []);
      ctx.stroke(path);
      if (line.tip) tip(ctx, line);
    }
    ctx.setLineDash([]);
  }

  fill(one, item) {
    if (options.colour === "kind" || (item < 0 && this.opened.has(~item))) return null;
    return ramp(one[options.colour], most());
  }

  drawBlock(ctx, p) {
    const block = this.graph.blocks[~p.item], fill = this.fill(block, p.item);
    rounded(ctx, p, 9);
    ctx.fillStyle = fill ? fill.css : p.open ? (p.depth % 2 ? palette.deep : palette.wash) : palette.sheet;
    ctx.fill();
    this.outlineBox(ctx, p, p.open ? [] : [5, 3]);
    if (this.camera.k < 0.16 && !p.open) return;
    const ink = fill ? fill.ink : palette.ink, soft = fill ? fill.ink : palette.soft;
    ctx.font = `600 12px ${MONO}`;
    ctx.fillStyle = ink;
    ctx.textAlign = "left";
    const many = `${block.place + 1} of ${block.count}`;
    ctx.fillText(fit(ctx, `${p.open ? "▾" : "▸"} ${block.label}`, p.w - (p.open ? 36 + many.length * 7 : 24)), p.x + 12, p.y + 18);
    ctx.font = `11px ${MONO}`;
    ctx.fillStyle = soft;
    if (!p.open) {
      const cost = amount(block[options.colour === "bytes" ? "bytes" : "flops"], options.colour === "bytes" ? "B" : "FLOPs");
      ctx.fillText(fit(ctx, `${many} · ${block.size} nodes · ${cost}`, p.w - 20), p.x + 12, p.y + 36);
      return;
    }
    ctx.textAlign = "right";
    ctx.fillText(many, p.x + p.w - 12, p.y + 18);
    ctx.textAlign = "left";
  }

  drawBox(ctx, p) {
    const box = this.graph.boxes[p.item], k = this.camera.k, fill = this.fill(box, p.item);
    const end = box.kind === "input" || box.kind === "output";
    rounded(ctx, p, end ? 14 : 6);
    ctx.fillStyle = fill ? fill.css : k < 0.28 ? palette[box.kind] : palette.sheet;
    ctx.globalAlpha = !fill && k < 0.28 ? 0.55 : 1;
    ctx.fill();
    ctx.globalAlpha = 1;
    this.outlineBox(ctx, p, []);
    if (k < 0.28) return;
    ctx.fillStyle = palette[box.kind];
    if (!fill) ctx.fillRect(p.x + 8, p.y + 8, 4, 11);
    ctx.textAlign = "left";
    ctx.font = `600 12px ${MONO}`;
    ctx.fillStyle = fill ? fill.ink : palette.ink;
    ctx.fillText(fit(ctx, box.title, p.w - 26), p.x + (fill ? 10 : 18), p.y + 18);
    if (k < 0.42) return;
    ctx.font = `11px ${MONO}`;
    ctx.fillStyle = fill ? fill.ink : palette.soft;
    let y = p.y + 33;
    for (const type of box.types) { ctx.fillText(fit(ctx, type, p.w - 18), p.x + 10, y); y += 15; }
    if (!options.weights) return;
    ctx.font = `10px ${MONO}`;
    for (const row of box.rows) { ctx.fillText(fit(ctx, `◆ ${row.label} · ${row.type}`, p.w - 18), p.x + 10, y + 1); y += 14; }
  }

  outlineBox(ctx, p, dash) {
    const chosen = p.item === this.selected, found = !p.open && this.found.has(p.item);
    ctx.lineWidth = chosen || found ? Math.max(2.5, 2 / this.camera.k) : 1;
    ctx.strokeStyle = chosen ? palette.ink : found ? palette.accent : palette.line;
    ctx.setLineDash(chosen ? [] : dash);
    ctx.stroke();
    ctx.setLineDash([]);
  }
}

function trace(path, line) {
  const bend = Math.min(Math.max((line.y2 - line.y1) / 2, 8), 60);
  path.moveTo(line.x1, line.y1);
  path.bezierCurveTo(line.x1, line.y1 + bend, line.x2, line.y2 - bend, line.x2, line.y2);
  if (line.bottom > line.y2) path.lineTo(line.x2, line.bottom);
}

function tip(ctx, line) {
  ctx.beginPath();
  ctx.moveTo(line.x2, line.y2);
  ctx.lineTo(line.x2 - 3.5, line.y2 - 7);
  ctx.lineTo(line.x2 + 3.5, line.y2 - 7);
  ctx.fill();
}

function rounded(ctx, p, radius) {
  ctx.beginPath();
  ctx.roundRect(p.x, p.y, p.w, p.h, radius);
}

function fit(ctx, text, width) {
  const each = ctx.measureText("0").width, most = Math.max(Math.floor(width / each), 1);
  const letters = text.length > most ? Array.from(text.slice(0, most + 8)) : null;
  return letters && letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

const tops = {};

// The costliest node of all graphs, so that colours before and after mean the same.
function most() {
  const key = options.colour;
  if (!(key in tops)) {
    tops[key] = views.reduce((top, view) => view.graph.boxes.reduce((one, box) => Math.max(one, box[key] || 0), top), 1);
  }
  return tops[key];
}

// The share of the costliest node, by its logarithm over four decades.
function ramp(value, top) {
  if (value === null) return { css: palette.deep, ink: palette.ink };
  if (!value) return { css: palette.sheet, ink: palette.soft };
  const t = Math.min(Math.max(1 + Math.log10(value / top) / 4, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(t), RAMP.length - 2), part = t - low;
  const rgb = RAMP[low].map((one, k) => Math.round(one + (RAMP[low + 1][k] - one) * part));
  return { css: `rgb(${rgb.join(",")})`, ink: t > 2.6 ? "#fff" : "#23211d" };
}

// -- the page around them

const views = data.graphs.map((raw, number) => new View(new Graph(raw, number)));
const label = (graph) => (data.graphs.length > 1 ? `${graph.number ? "after" : "before"}: ${graph.raw.name}` : graph.raw.name);

function select(view, item) {
  for (const one of views) {
    one.selected = one === view ? item : null;
    // What came from the same place is the same, before and after.
    if (one !== view) one.found = new Set(twins(one, view, item));
    else if (!$("search").value) one.found = new Set();
    one.paint();
  }
  describe(view, item);
}

function twins(other, view, item) {
  if (item === null || item < 0 || !view.graph.boxes[item].origin) return [];
  const { origin, op } = view.graph.boxes[item];
  const near = other.graph.boxes.filter((box) => box.origin === origin), same = near.filter((box) => box.op === op);
  return (same.length ? same : near).map((box) => box.id);
}

function go(view, item) {
  view.reveal(item);
  select(view, item);
  view.center(item);
  for (const other of views) {
    const [twin] = other === view ? [] : twins(other, view, item);
    if (twin !== undefined) { other.reveal(twin); other.center(twin); }
  }
}

function describe(view, item) {
  const panel = $("detail"), graph = view.graph;
  if (item === null) { panel.replaceChildren(); return; }
  const one = graph.at(item), facts = [];
  const list = (rows) => element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]));
  if (item < 0) {
    const toggle = element("button", { textContent: view.opened.has(one.id) ? "Fold" : "Open" });
    toggle.addEventListener("click", () => { view.toggle(one.id); describe(view, item); });
    panel.replaceChildren(
      element("h3", { textContent: one.label }), element("p", { className: "kind", textContent: `block ${one.place + 1} of ${one.count}` }),
      list([["nodes", String(one.size)], ["FLOPs", amount(one.flops, "")], ["bytes", amount(one.bytes, "B")]]), toggle);
    return;
  }
  const values = graph.values(one);
  if (values) facts.push(["value", values]);
  one.types.forEach((type, k) => facts.push([one.types.length > 1 ? `result ${k}` : "type", type]));
  if (one.op !== "output") facts.push(["FLOPs", amount(one.flops, "")], ["bytes", amount(one.bytes, "B")]);
  if (one.formula) facts.push(["= FLOPs", one.formula]);
  const parts = [
    element("h3", { textContent: one.title }),
    element("p", { className: "kind", textContent: [one.op, one.kind === one.op ? "" : one.kind, one.origin].filter(Boolean).join(" · ") }),
    list(facts),
  ];
  if (one.attrs.length) parts.push(element("h4", { textContent: "Attributes" }), list(one.attrs));
  const link = (box, type) => {
    const button = element("button", { className: "link" }, box.title, element("small", { textContent: [graph.values(box), type, box.origin].filter(Boolean).join(" · ") }));
    button.addEventListener("click", () => go(view, box.id));
    return button;
  };
  if (one.inputs.length || one.rows.length) parts.push(element("h4", { textContent: "Reads" }));
  for (const value of one.inputs) {
    const box = graph.boxes[graph.madeBy.get(value)];
    parts.push(link(box, box.types[box.outputs.indexOf(value)]));
  }
  for (const row of one.rows) {
    const via = row.via ? ` → ${row.via}` : "";
    parts.push(element("div", { className: "weight", textContent: `◆ ${row.label} · ${row.type}${via}` }));
  }
  const readers = one.outputs.flatMap((value) => graph.readers.get(value) || []);
  if (readers.length) parts.push(element("h4", { textContent: readers.length > 1 ? `Read by ${readers.length}` : "Read by" }));
  for (const reader of readers.slice(0, 60)) parts.push(link(graph.boxes[reader], graph.boxes[reader].types[0]));
  panel.replaceChildren(...parts);
}

let hits = [], current = -1;

function search() {
  const asked = $("search").value.trim().toLowerCase();
  hits = []; current = -1;
  for (const view of views) {
    view.found = new Set();
    for (const box of asked ? view.graph.boxes : []) if (matches(box, asked)) { hits.push([view, box]); view.found.add(box.id); }
    for (const id of [...view.found]) {
      for (let block = view.graph.homes[id]; block > 0; block = view.graph.blocks[block].parent) if (!view.opened.has(block)) view.found.add(~block);
    }
    view.paint();
  }
  $("found").hidden = !asked;
  $("found-title").textContent = `${hits.length} found${hits.length > 200 ? ", the first 200 shown" : ""}`;
  $("results").replaceChildren(...hits.slice(0, 200).map(([view, box], k) => {
    const facts = [views.length > 1 ? (view.graph.number ? "after" : "before") : "", view.graph.values(box), box.types[0], box.origin];
    const button = element("button", {}, box.title, element("small", { textContent: facts.filter(Boolean).join(" · ") }));
    button.addEventListener("click", () => pick(k));
    return element("li", {}, button);
  }));
}

function matches(box, asked) {
  if (asked.startsWith("%")) return box.outputs.some((value) => `%${value}` === asked);
  return box.op.toLowerCase().includes(asked) || box.title.toLowerCase().includes(asked) || box.origin.toLowerCase().includes(asked) ||
    box.rows.some((row) => row.label.toLowerCase().includes(asked) || row.origin.toLowerCase().includes(asked));
}

function pick(k) {
  current = k;
  [...$("results").children].forEach((row, n) => row.firstChild.classList.toggle("now", n === k));
  const row = $("results").children[k];
  if (row) row.scrollIntoView({ block: "nearest" });
  go(hits[k][0], hits[k][1].id);
}

function outline() {
  $("outline").replaceChildren(...views.map((view) => {
    const inside = (parent) => {
      const rows = view.graph.blocks.filter((one) => one.parent === parent && one.id);
      return rows.length ? element("ul", {}, ...rows.map((one) => {
        const button = element("button", { textContent: one.label, title: `${one.place + 1} of ${one.count}, ${one.size} nodes` });
        button.setAttribute("aria-expanded", String(view.opened.has(one.id)));
        button.addEventListener("click", () => { view.reveal(~one.id); view.toggle(one.id); select(view, ~one.id); view.center(~one.id); });
        return element("li", {}, button, view.opened.has(one.id) ? inside(one.id) : null);
      })) : null;
    };
    const name = views.length > 1 ? element("h3", { textContent: label(view.graph) }) : null;
    return element("div", {}, name, inside(0) || element("p", { className: "quiet", textContent: "Nothing repeats." }));
  }));
}

function counts() {
  const names = [...new Set(views.flatMap((view) => Object.keys(view.graph.raw.counts)))];
  const of = (view, name) => view.graph.raw.counts[name] || 0;
  const row = (name, cells) => {
    const button = element("button", { textContent: name });
    button.addEventListener("click", () => { $("search").value = name; search(); });
    return element("tr", {}, element("td", {}, button), ...cells);
  };
  const cell = (text, className) => element("td", { textContent: text, className: className || "" });
  const both = views.length > 1;
  names.sort((a, b) => Math.max(...views.map((v) => of(v, b))) - Math.max(...views.map((v) => of(v, a))) || (a < b ? -1 : 1));
  const total = views.map((view) => Object.values(view.graph.raw.counts).reduce((a, b) => a + b, 0));
  const change = (a, b) => cell(b === a ? "·" : b > a ? `+${b - a}` : `−${a - b}`, b === a ? "quiet" : b > a ? "more" : "less");
  const head = both ? ["op", "before", "after", "change"] : ["op", "nodes"];
  $("counts").replaceChildren(
    element("tr", {}, ...head.map((one) => element("th", { textContent: one }))),
    ...names.map((name) => row(name, [...views.map((view) => cell(String(of(view, name)))), ...(both ? [change(of(views[0], name), of(views[1], name))] : [])])),
    element("tr", {}, cell("all"), ...total.map((one) => cell(String(one))), ...(both ? [change(total[0], total[1])] : [])));
}

function legends() {
  for (const view of views) {
    if (options.colour === "kind") {
      const used = new Set(view.graph.boxes.map((box) => box.kind));
      view.legend.replaceChildren(...KINDS.filter((kind) => used.has(kind)).map((kind) => {
        const dot = element("i");
        dot.style.background = palette[kind];
        return element("span", {}, dot, kind);
      }));
    } else {
      const bar = element("span", { className: "ramp" }), unit = options.colour === "flops" ? "FLOPs" : "B";
      bar.style.background = `linear-gradient(90deg, ${RAMP.map((one) => `rgb(${one.join(",")})`).join(",")})`;
      view.legend.replaceChildren(amount(most() / 1e4, unit), bar, amount(most(), unit), element("span", { textContent: "(log scale; plain: none)" }));
    }
  }
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  palette = {};
  for (const name of ["paper", "sheet", "ink", "soft", "line", "wash", "deep", "edge", "accent", "into", "from", ...KINDS]) {
    palette[name] = style.getPropertyValue(`--${name}`).trim();
  }
  legends();
  for (const view of views) view.paint();
}

function compose(change) {
  for (const view of views) {
    if (change) change(view);
    if (view.selected !== null && view.selected >= 0 && !view.visible(view.selected)) select(view, null);
    view.compose();
  }
  outline();
}

const everything = (view) => { view.opened = new Set(view.graph.blocks.map((one) => one.id)); };
const nothing = (view) => { view.opened = new Set([0]); };

function start() {
  $("title").textContent = document.title;
  $("panes").append(...views.map((view) => view.pane));
  $("fit").addEventListener("click", () => views.forEach((view) => view.all()));
  $("fold").addEventListener("click", () => { compose(nothing); views.forEach((view) => view.fit()); });
  $("unfold").addEventListener("click", () => { compose(everything); views.forEach((view) => view.fit()); });
  const weights = (on) => { options.weights = on; $("weights").setAttribute("aria-pressed", String(on)); compose(); };
  $("weights").addEventListener("click", () => weights(!options.weights));
  const colour = (by) => { $("colour").value = options.colour = by; legends(); views.forEach((view) => view.paint()); };
  $("colour").addEventListener("change", () => colour($("colour").value));
  $("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    colours();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colours);
  $("search").addEventListener("input", search);
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && hits.length) pick((current + (event.shiftKey ? hits.length - 1 : 1)) % Math.min(hits.length, 200));
    if (event.key === "Escape") { $("search").value = ""; search(); views[0].canvas.focus(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== $("search")) { event.preventDefault(); $("search").focus(); }
  });
  // What to show first can be asked for in the address: #fold=all&weights=1&colour=flops&q=softmax&pick=0
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.get("theme")) document.documentElement.dataset.theme = asked.get("theme");
  colours();
  options.weights = asked.get("weights") === "1";
  $("weights").setAttribute("aria-pressed", String(options.weights));
  if (["flops", "bytes"].includes(asked.get("colour"))) colour(asked.get("colour"));
  compose({ all: nothing, none: everything }[asked.get("fold")]);
  counts();
  new ResizeObserver(() => views.forEach((view) => view.resize())).observe($("panes"));
  views.forEach((view) => { view.resize(); view.fit(); });
  if (asked.get("q")) {
    $("search").value = asked.get("q");
    search();
    if (asked.has("pick") && hits.length) pick(Math.min(Math.max(Number(asked.get("pick")) || 0, 0), hits.length - 1));
  }
  if (asked.get("zoom") === "all") views.forEach((view) => view.all());
  document.body.dataset.ready = "1";
}

start();
})();
