// A panel in which something trains in the page: controls, run, step and reset, a canvas, and words for all who do not see
// it. What trains is given: `make(state)` starts it, `step(model)` takes one step, `draw` and `words` show it.
(function () {
  const SAY_EVERY = 2000;  // milliseconds between two announcements while it runs
  const AT_ONCE = 200;  // steps that a click on Run takes where the reader wants no motion
  const COLORS = {
    text: "--pst-color-text-base", soft: "--attn-soft", line: "--attn-line", back: "--attn-surface", first: "--attn-blue", second: "--attn-miss",
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  function element(kind, attributes = {}, ...children) {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // One labelled control; `on` is told the new value, which is one of the values that the control takes.
  function control({ name, label, values, texts = values.map(String), kind = "select" }, state, on) {
    const at = values.indexOf(state[name]);
    if (kind === "range") {
      const output = element("output", {}, texts[at]);
      output.style.minWidth = `${Math.max(...texts.map((text) => text.length))}ch`;  // a longer value must not wrap the label
      const input = element("input", { type: "range", min: 0, max: values.length - 1, value: at, "aria-valuetext": texts[at] });
      const show = (n) => { output.textContent = texts[n]; input.setAttribute("aria-valuetext", texts[n]); };
      input.addEventListener("input", () => { show(+input.value); on(values[+input.value]); });
      const set = (value) => { input.value = values.indexOf(value); show(+input.value); };
      return { set, label: element("label", {}, element("span", {}, label, " ", output), input) };
    }
    const input = element("select", {}, ...texts.map((text, n) => element("option", { value: n }, text)));
    input.value = at;
    input.addEventListener("change", () => on(values[+input.value]));
    return { set: (value) => { input.value = values.indexOf(value); }, label: element("label", {}, element("span", {}, label), input) };
  }

  function start(box, what) {
    const state = { ...what.state };
    let model = what.make(state), running = false, said = 0, waiting = false;

    const canvas = element("canvas", what.keys ? { tabindex: 0, role: "application", "aria-label": what.help } : { role: "img" });
    const words = element("p", { class: "attnbook-train-text" });
    const aloud = element("p", { class: "attnbook-train-aloud", "aria-live": "polite" });
    const run = element("button", { type: "button" }), again = element("button", { type: "button" }, "Reset");
    const one = element("button", { type: "button" }, "Step");
    const controls = Object.fromEntries(what.controls.map((c) => [c.name, control(c, state, (value) => panel.change(c.name, value))]));
    const buttons = element("div", { class: "attnbook-train-buttons" }, run, one, again);
    for (const [text, act] of Object.entries(what.buttons || {})) {
      const button = element("button", { type: "button" }, text);
      button.addEventListener("click", () => { act(panel); panel.reset(); });
      buttons.append(button);
    }

    const panel = {
      state, canvas,
      get model() { return model; },
      change(name, value) {  // by a control, or by the panel itself
        state[name] = value;
        controls[name]?.set(value);
        if (!what.controls.find((c) => c.name === name)?.keeps) model = what.make(state);
        show();
        if (!running) say();
      },
      reset() { pause(); model = what.make(state); show(); say(); },
      touch() { if (!running) { if (!model.step) model = what.make(state); show(); } },  // what is trained on was changed
      say,
    };

    const label = () => { if (!what.keys) canvas.setAttribute("aria-label", what.words(model, state)); };
    function say() { said = performance.now(); aloud.textContent = what.words(model, state); label(); }
    function show() {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(); });
    }
    function draw() {
      const width = canvas.parentElement.clientWidth, height = what.height(width), scale = devicePixelRatio || 1;
      if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
        canvas.width = Math.round(width * scale);
        canvas.height = Math.round(height * scale);
        canvas.style.height = `${height}px`;
      }
      const style = getComputedStyle(box), colors = {}, pen = canvas.getContext("2d");
      for (const [name, variable] of Object.entries(COLORS)) colors[name] = style.getPropertyValue(variable).trim() || "#555";
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, height);
      pen.font = `12px ${style.fontFamily}`;
      what.draw(pen, { width, height, colors, model, state, focused: document.activeElement === canvas });
      words.textContent = what.words(model, state);
      const action = running ? "Pause" : still.matches ? `Run ${AT_ONCE} steps` : "Run";
      if (run.textContent !== action) run.textContent = action;
    }
    function pause() { running = false; }
    function forward(steps) { for (let n = 0; n < steps && !model.done; n++) what.step(model, state); }
    function frame() {
      if (!running) return;
      forward(Math.min(25, 1 + Math.floor(model.step / 60)));  // slow at first, when most happens
      if (model.done) pause();
      show();
      if (!running || performance.now() - said > SAY_EVERY) say();
      requestAnimationFrame(frame);
    }
    run.addEventListener("click", () => {
      if (model.done) model = what.make(state);
      if (still.matches) { forward(AT_ONCE); show(); say(); return; }
      running = !running;
      show();
      if (running) { said = performance.now(); requestAnimationFrame(frame); } else say();
    });
    one.addEventListener("click", () => { pause(); forward(1); show(); say(); });
    again.addEventListener("click", panel.reset);
    what.listen?.(panel);

    box.append(element("div", { class: "attnbook-train-live", role: "group", "aria-label": what.title },
      element("p", { class: "attnbook-train-title" }, element("strong", {}, `${what.title}.`), ` ${what.task}`),
      element("div", { class: "attnbook-train-controls" }, ...what.controls.map((c) => controls[c.name].label), buttons),
      element("div", {}, canvas), words, aloud));
    box.classList.add("attnbook-train-taken");
    new ResizeObserver(show).observe(canvas.parentElement);
    new MutationObserver(show).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    for (const event of ["focus", "blur"]) canvas.addEventListener(event, show);
    still.addEventListener("change", () => { pause(); show(); });
    label();
    show();
    return panel;
  }

  // Axes of a small plot inside a frame, with a title above: returns how numbers become pixels.
  function axes(pen, frame, colors, { title, x, y, log = false, xlabel = "", ticks, name = String }) {
    const left = frame.x + 40, right = frame.x + frame.width - 8, top = frame.y + 22, bottom = frame.y + frame.height - 34;
    const scaled = log ? Math.log10 : (v) => v, [low, high] = y.map(scaled);
    const toX = (v) => left + ((v - x[0]) / (x[1] - x[0])) * (right - left);
    const toY = (v) => bottom - ((Math.min(high, Math.max(low, scaled(v))) - low) / (high - low)) * (bottom - top);
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    for (const tick of ticks) {
      pen.strokeStyle = colors.line;
      pen.beginPath(); pen.moveTo(left, toY(tick)); pen.lineTo(right, toY(tick)); pen.stroke();
      write(pen, name(tick), left - 5, toY(tick), colors.soft, "right");
    }
    pen.strokeStyle = colors.soft;
    pen.beginPath(); pen.moveTo(left, top); pen.lineTo(left, bottom); pen.lineTo(right, bottom); pen.stroke();
    if (xlabel) {
      write(pen, `${x[0]}`, left, bottom + 10, colors.soft, "center");
      write(pen, `${x[1]}`, right, bottom + 10, colors.soft, "right");
      write(pen, xlabel, (left + right) / 2, bottom + 10, colors.soft, "center");
    }
    write(pen, title, frame.x + frame.width / 2, frame.y + 9, colors.text, "center", "600");
    return { toX, toY, left, right, top, bottom };
  }
  function write(pen, text, x, y, color, align = "left", weight = "") {
    const before = pen.font;
    pen.font = `${weight} ${before}`;
    pen.fillStyle = color;
    pen.textAlign = align;
    pen.textBaseline = "middle";
    pen.fillText(text, x, y);
    pen.font = before;
  }
  // A curve through values[0], values[1], ...; at most one point for each pixel.
  function curve(pen, to, values, color, dash = [], width = 2) {
    const skip = Math.max(1, Math.floor(values.length / (to.right - to.left)));
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.setLineDash(dash);
    pen.beginPath();
    for (let n = 0; n < values.length; n += skip) pen.lineTo(to.toX(n), to.toY(values[n]));
    if (values.length) pen.lineTo(to.toX(values.length - 1), to.toY(values[values.length - 1]));
    pen.stroke();
    pen.setLineDash([]);
  }
  // The end of the axis of steps: 100, 200, 500, 1000, ...
  const lastStep = (steps) => [100, 200, 500, 1000, 2000, 5000].find((end) => steps <= end) || steps;

  globalThis.attnbookTrain = { start, axes, write, curve, lastStep };
})();
