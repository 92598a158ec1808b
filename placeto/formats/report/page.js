"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("gantt"), tip = document.getElementById("tip");
  const pen = canvas.getContext("2d");
  const TICKS = 2 ** 32 - 1;
  const AXIS = 22, OPS = 24, SENDS = 8, GAP = 12;
  const NARROWEST = 64 / TICKS; // of what is shown, as a share of the step

  const unpacked = (text, kind) => new kind(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
  const ops = {
    first: data.ops.first, names: data.ops.names,
    start: unpacked(data.ops.start, Uint32Array), end: unpacked(data.ops.end, Uint32Array),
    label: unpacked(data.ops.label, Uint8Array), module: unpacked(data.ops.module, Uint32Array),
    type: unpacked(data.ops.type, Uint32Array), critical: unpacked(data.ops.critical, Uint8Array),
  };
  const sends = {
    first: data.sends.first,
    start: unpacked(data.sends.start, Uint32Array), end: unpacked(data.sends.end, Uint32Array),
    to: unpacked(data.sends.to, Int16Array), bytes: unpacked(data.sends.bytes, Float64Array),
    name: unpacked(data.sends.name, Uint32Array), critical: unpacked(data.sends.critical, Uint8Array),
  };
  // Sends of one device may overlap: the latest end of all up to each finds where those in sight begin.
  for (const items of [ops, sends]) {
    items.reach = new Uint32Array(items.end);
    for (let row = 0; row + 1 < items.first.length; row++)
      for (let i = items.first[row] + 1; i < items.first[row + 1]; i++)
        items.reach[i] = Math.max(items.reach[i], items.reach[i - 1]);
  }
  const rows = data.devices.map((_, device) => device)
    .filter((device) => ops.first[device + 1] > ops.first[device]);
  const height = AXIS + rows.length * (OPS + SENDS + GAP) + 4;
  let margin = 0, width = 0, from = 0, span = 1, colors = {}, asked = false;

  const three = (value) => value.toPrecision(3).includes("e") ? value.toFixed(0) : value.toPrecision(3);
  function time(us, step) {
    const [unit, scale] = data.makespan_us >= 1e6 ? ["s", 1e6] : data.makespan_us >= 2e3 ? ["ms", 1e3] : ["us", 1];
    return step === undefined
      ? (us >= 1e6 ? three(us / 1e6) + " s" : us >= 1e3 ? three(us / 1e3) + " ms" : three(us) + " us")
      : (us / scale).toFixed(Math.min(9, Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9)))) + " " + unit;
  }
  const size = (bytes) => {
    const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let unit = 0;
    while (bytes >= 999.5 && unit < units.length - 1) { bytes /= 1000; unit++; }
    return (unit ? three(bytes) : bytes.toFixed(0)) + " " + units[unit];
  };
  const luminance = (hex) => [1, 3, 5].reduce(
    (sum, at, channel) => sum + parseInt(hex.slice(at, at + 2), 16) * [0.3, 0.59, 0.11][channel], 0);
  const inks = data.colors.map((hex) => luminance(hex) > 140 ? "#000000" : "#ffffff");

  function theme() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "soft", "rule", "critical", "send"])
      colors[name] = style.getPropertyValue("--" + name).trim();
  }

  function resize() {
    pen.font = "12px system-ui, sans-serif";
    const widest = Math.max(0, ...rows.map((device) => pen.measureText(data.devices[device]).width));
    const ratio = window.devicePixelRatio || 1;
    const full = canvas.clientWidth;
    margin = Math.min(widest + 16, 0.25 * full);
    width = Math.max(1, full - margin - 8);
    canvas.width = Math.round(full * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw();
  }

  // The first of a row's items that ends at or after a time.
  function firstInSight(items, row, tick) {
    let low = items.first[row], high = items.first[row + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (items.reach[middle] < tick) low = middle + 1; else high = middle;
    }
    return low;
  }

  // Draws a row. What is narrower than a pixel is gathered: a pixel gets the colour that fills most of it, paler if it
  // is not full.
  function drawRow(items, row, top, tall, colorOf) {
    const low = from * TICKS, scale = width / (span * TICKS), stop = items.first[row + 1];
    let pixel = -1, filled = 0, best = "", most = 0, critical = false;
    const flush = () => {
      if (pixel < 0) return;
      pen.globalAlpha = Math.min(1, 0.35 + 0.65 * filled);
      pen.fillStyle = best;
      pen.fillRect(margin + pixel, top, 1, tall);
      pen.globalAlpha = 1;
      if (critical) underline(margin + pixel, 1, top + tall);
      pixel = -1; filled = 0; most = 0; critical = false;
    };
    for (let i = firstInSight(items, row, low); i < stop; i++) {
      const left = Math.max(0, (items.start[i] - low) * scale);
      if (left > width) break;
      const right = Math.min(width, (items.end[i] - low) * scale);
      if (right < 0) continue;
      const wide = right - left;
      if (wide >= 1) {
        flush();
        pen.fillStyle = colorOf(i);
        pen.fillRect(margin + left, top, wide, tall);
        if (wide > 4) { pen.fillStyle = colors.paper; pen.fillRect(margin + right - 0.6, top, 0.6, tall); }
        if (items.critical[i]) underline(margin + left, wide, top + tall);
      } else {
        const here = Math.floor(left);
        if (here !== pixel) { flush(); pixel = here; }
        filled += wide;
        if (wide >= most) { most = wide; best = colorOf(i); }
        critical ||= items.critical[i] === 1 && wide > 0;
      }
    }
    flush();
  }

  function underline(left, wide, bottom) {
    pen.fillStyle = colors.critical;
    pen.fillRect(left, bottom, wide, 3);
  }

  // Names in runs of ops of one label that are wide enough.
  function caption(row, top) {
    const low = from * TICKS, scale = width / (span * TICKS), stop = ops.first[row + 1];
    let left = 0, right = -1, label = -1;
    const write = () => {
      if (label < 0 || right - left < 24) return;
      const parts = data.labels[label].split(".");
      for (let cut = 0; cut < parts.length; cut++) {
        const text = parts.slice(cut).join(".");
        if (/^[\d.]*$/.test(text)) return;
        if (data.labels.some((other, number) => number !== label && `.${other}`.endsWith(`.${text}`))) return;
        if (pen.measureText(text).width + 8 <= right - left) {
          pen.fillStyle = inks[label];
          pen.fillText(text, margin + (left + right) / 2, top + OPS / 2 + 0.5);
          return;
        }
      }
    };
    pen.textAlign = "center";
    for (let i = firstInSight(ops, row, low); i < stop; i++) {
      const a = Math.max(0, (ops.start[i] - low) * scale), b = Math.min(width, (ops.end[i] - low) * scale);
      if (a > width) break;
      if (b - a <= 0) continue;
      if (ops.label[i] !== label || a > right + 1.5) { write(); left = a; label = ops.label[i]; }
      right = b;
    }
    write();
  }

  function axis() {
    const whole = span * data.makespan_us;
    const rough = whole / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    pen.fillStyle = colors.soft;
    pen.strokeStyle = colors.rule;
    pen.textAlign = "center";
    pen.beginPath();
    for (let at = Math.ceil(from * data.makespan_us / step) * step; step > 0; at += step) {
      const x = margin + (at / (data.makespan_us || 1) - from) / span * width;
      if (x > margin + width + 0.5) break;
      pen.moveTo(Math.round(x) + 0.5, AXIS - 4);
      pen.lineTo(Math.round(x) + 0.5, height);
      const text = time(at, step), half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(x, margin + width - half), AXIS - 12);
    }
    pen.stroke();
  }

  function draw() {
    asked = false;
    theme();
    pen.fillStyle = colors.paper;
    pen.fillRect(0, 0, margin + width + 8, height);
    pen.textBaseline = "middle";
    pen.font = "11px system-ui, sans-serif";
    axis();
    rows.forEach((device, place) => {
      const top = AXIS + place * (OPS + SENDS + GAP) + 2;
      drawRow(ops, device, top, OPS - 3, (i) => data.colors[ops.label[i]]);
      drawRow(sends, device, top + OPS + 2, SENDS - 3, () => colors.send);
      pen.font = "11px system-ui, sans-serif";
      caption(device, top - 1.5);
      pen.font = "12px system-ui, sans-serif";
      pen.textAlign = "right";
      pen.fillStyle = colors.ink;
      pen.fillText(data.devices[device], margin - 8, top + OPS / 2, margin - 12);
    });
  }

  function look(newFrom, newSpan) {
    span = Math.min(1, Math.max(NARROWEST, newSpan));
    from = Math.min(1 - span, Math.max(0, newFrom));
    tip.hidden = true;
    if (!asked) { asked = true; requestAnimationFrame(draw); }
  }
  const zoom = (factor, at) => {
    const wanted = Math.min(1, Math.max(NARROWEST, span * factor));
    look(from + at * (span - wanted), wanted);
  };
  const actions = {
    in: () => zoom(0.5, 0.5), out: () => zoom(2, 0.5), all: () => look(0, 1),
    left: () => look(from - 0.25 * span, span), right: () => look(from + 0.25 * span, span),
  };

  function found(x, y) {
    const place = Math.floor((y - AXIS) / (OPS + SENDS + GAP));
    if (place < 0 || place >= rows.length || x < margin) return "";
    const inside = y - AXIS - place * (OPS + SENDS + GAP);
    const items = inside < OPS + 3 ? ops : sends;
    const low = from * TICKS, scale = width / (span * TICKS), at = low + (x - margin) / scale;
    let near = -1, least = 3 / scale;
    for (let i = firstInSight(items, rows[place], at - least); i < items.first[rows[place] + 1]; i++) {
      if (items.start[i] > at + least) break;
      const far = at < items.start[i] ? items.start[i] - at : Math.max(0, at - items.end[i]);
      if (far < least || (far === least && near < 0)) { near = i; least = far; }
      if (far === 0 && items === ops) break;
    }
    return near < 0 ? "" : items === ops ? tellOp(near, rows[place]) : tellSend(near, rows[place]);
  }
  const when = (items, i) => {
    const us = (tick) => tick / TICKS * data.makespan_us, exact = (tick) => time(us(tick), data.makespan_us * 1e-6);
    const path = items.critical[i] ? "\non the critical path" : "";
    return `${exact(items.start[i])} to ${exact(items.end[i])}, takes ${time(us(items.end[i] - items.start[i]))}${path}`;
  };
  const tellOp = (i, device) =>
    `${ops.names[i]}\n${data.types[ops.type[i]]} in ${data.modules[ops.module[i]] || "no module"}, on ${data.devices[device]}\n${when(ops, i)}`;
  const tellSend = (i, device) =>
    `${size(sends.bytes[i])} from ${data.devices[device]} to ${sends.to[i] < 0 ? "all" : data.devices[sends.to[i]]}\n` +
    `made by ${ops.names[sends.name[i]]}\n${when(sends, i)}`;

  function show(x, y) {
    const text = found(x, y);
    tip.hidden = text === "";
    if (text === "") return;
    tip.textContent = text;
    tip.style.left = Math.max(0, Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 4)) + "px";
    tip.style.top = y + 16 + "px";
  }

  let grabbed = null;
  canvas.addEventListener("pointerdown", (event) => {
    grabbed = { x: event.offsetX, from };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("moving");
  });
  canvas.addEventListener("pointermove", (event) => {
    if (grabbed) look(grabbed.from - (event.offsetX - grabbed.x) / width * span, span);
    else show(event.offsetX, event.offsetY);
  });
  for (const name of ["pointerup", "pointercancel"])
    canvas.addEventListener(name, () => { grabbed = null; canvas.classList.remove("moving"); });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", actions.all);
  canvas.addEventListener("wheel", (event) => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      look(from + event.deltaX / width * span, span);
    } else if (event.deltaY < 0 || span < 1) {
      zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0025),
        Math.min(1, Math.max(0, (event.offsetX - margin) / width)));
    } else return; // all is in sight: the page scrolls
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const action = {
      "+": "in", "=": "in", "-": "out", "−": "out", "0": "all", Home: "all", ArrowLeft: "left", ArrowRight: "right",
    }[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    actions[action]();
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-do]"))
    button.addEventListener("click", actions[button.dataset.do]);

  const legend = document.getElementById("legend");
  data.labels.forEach((label, number) => {
    const item = document.createElement("li"), square = document.createElement("i");
    square.style.background = data.colors[number];
    item.append(square, label);
    legend.append(item);
  });
  new ResizeObserver(resize).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); draw(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); draw(); });
  resize();
  document.documentElement.dataset.drawn = "yes";
})();
