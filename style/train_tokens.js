// Six tokens in the plane that the reader moves, and one layer of attention that trains on them. The formulas are those of
// attnbook/mirror_descent: attention.py (loss, gradient), mirror_steps.py (the step), attention_svm.py (the solution).
(function () {
  const NAMES = "ABCDEF", MOST_STEPS = 4000, REACH = { x: 1.9, y: 1.25 };  // how far tokens may be moved
  const dot = (a, b) => a.reduce((sum, v, n) => sum + v * b[n], 0);
  const times = (matrix, vector) => matrix.map((row) => dot(row, vector));
  const softplus = (v) => Math.max(v, 0) + Math.log1p(Math.exp(-Math.abs(v)));
  const power = (v, exponent) => Math.sign(v) * Math.abs(v) ** exponent;  // with the sign of v

  // The norm of all entries together.
  const norm = (matrix, p) => matrix.flat().reduce((sum, v) => sum + Math.abs(v) ** p, 0) ** (1 / p);
  const scores = ({ tokens, decoder, label }) => tokens.map((token) => label * dot(decoder, token));
  const best = (values) => values.indexOf(Math.max(...values));

  // Loss, attention and gradient at W; the gradient is `gradient` times the exponential of `logScale`. The token attended
  // most has weight one minus something tiny: it is kept as minus the sum of the others.
  function evaluate(W, problem) {
    const { tokens, query, label } = problem, gamma = scores(problem), keys = times(W, query);
    const logits = tokens.map((token) => dot(token, keys)), top = best(logits);
    const below = logits.map((v) => v - logits[top]);
    const logScale = Math.max(...below.filter((_, n) => n !== top)), unit = Math.exp(logScale);
    const raw = below.map((v, n) => (n === top ? 0 : Math.exp(v - logScale)));
    const total = 1 + unit * raw.reduce((a, b) => a + b, 0);
    const others = raw.map((v) => v / total), relative = gamma.map((v) => v - gamma[top]);
    const mean = dot(others, relative), margin = gamma[top] + unit * mean;
    const parts = others.map((v, n) => v * (relative[n] - unit * mean));
    parts[top] = -parts.reduce((a, b, n) => (n === top ? a : a + b), 0);
    const slope = -1 / (1 + Math.exp(margin));
    const along = [0, 1].map((i) => slope * tokens.reduce((sum, token, n) => sum + parts[n] * token[i], 0));
    const attention = others.map((v, n) => (n === top ? 1 / total : unit * v));
    return { loss: softplus(-margin), attention, top, gradient: along.map((v) => query.map((z) => v * z)), logScale };
  }

  // The mirror image of the weights, and back.
  const mirrored = (W, p) => W.map((row) => row.map((v) => power(v, p - 1)));
  const image = (theta, p) => theta.map((row) => row.map((v) => power(v, 1 / (p - 1))));

  // One step of mirror descent on the mirror image: plain, or scale-free (the gradient over its dual norm).
  function stepped(theta, W, problem, { p, stepSize, scaleFree }) {
    const { gradient, logScale } = evaluate(W, problem), q = p / (p - 1);
    let factor = Math.exp(logScale), slopes = gradient;
    if (scaleFree) {
      const largest = Math.max(Number.MIN_VALUE, ...gradient.flat().map(Math.abs));
      slopes = gradient.map((row) => row.map((v) => v / largest));
      factor = Math.max(1, norm(theta, q) ** (q / p)) ** (p - 2) / Math.max(1e-300, norm(slopes, q));
    }
    return theta.map((row, i) => row.map((v, j) => v - stepSize * factor * slopes[i][j]));
  }

  // The first column of the smallest matrix (in the p-norm) that picks a token with margin one, for the query (1, 0):
  // in the plane it has one or two tokens at the margin. Null where the token lies within the others.
  function solution(tokens, chosen, p) {
    const ahead = tokens.filter((_, n) => n !== chosen).map((token) => token.map((v, i) => tokens[chosen][i] - v)), q = p / (p - 1);
    const found = ahead.map((a) => a.map((v) => power(v, q - 1) / a.reduce((sum, u) => sum + Math.abs(u) ** q, 0)));
    ahead.forEach((a, m) => ahead.slice(m + 1).forEach((b) => {
      const area = a[0] * b[1] - a[1] * b[0];
      if (area) found.push([(b[1] - a[1]) / area, (a[0] - b[0]) / area]);
    }));
    const size = (w) => norm([w], p), fits = found.filter((w) => ahead.every((a) => dot(a, w) >= 1 - 1e-9));
    return fits.reduce((least, w) => (least && size(least) <= size(w) ? least : w), null);
  }

  // A layer before its first step: at zero, or `far` times out on the ray of the chosen token's solution.
  function begin(problem, { p, far, chosen }) {
    const ray = far ? solution(problem.tokens, chosen, p) : null, w = ray || [0, 0];
    const W = [[far * w[0], 0], [far * w[1], 0]];
    return { W, theta: mirrored(W, p), step: 0, losses: [evaluate(W, problem).loss], onRay: Boolean(ray), done: false };
  }
  function advance(model, problem, options) {
    model.theta = stepped(model.theta, model.W, problem, options);
    model.W = image(model.theta, options.p);
    model.losses.push(evaluate(model.W, problem).loss);
    model.step += 1;
  }

  globalThis.attnbookTokens = { evaluate, solution, begin, advance, scores, norm };
  if (typeof document === "undefined") return;  // only the formulas are asked for
  const { start, axes, write, curve, lastStep } = globalThis.attnbookTrain;

  const frames = (width) => (width < 560
    ? { plane: [0, 0, width, 250], bars: [0, 256, width, 150], losses: [0, 412, width, 170], height: 586 }
    : { plane: [0, 0, width * 0.6, 336], bars: [width * 0.6, 0, width * 0.4, 160], losses: [width * 0.6, 166, width * 0.4, 170], height: 338 });
  function scaleOf([x, y, width, height]) {  // of the plane: where a point lies on the canvas
    const unit = Math.min(width / (2 * REACH.x + 0.5), height / (2 * REACH.y + 0.3));
    return { unit, to: ([a, b]) => [x + width / 2 + a * unit, y + height / 2 - b * unit] };
  }

  function arrow(pen, from, to, color, width, dash = []) {
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = width;
    pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(...from); pen.lineTo(...to); pen.stroke();
    pen.setLineDash([]);
    pen.beginPath(); pen.moveTo(...to);
    for (const turn of [2.7, -2.7]) pen.lineTo(to[0] + 11 * Math.cos(angle + turn), to[1] + 11 * Math.sin(angle + turn));
    pen.fill();
  }

  function drawPlane(pen, frame, { colors, state, model, focused }, found) {
    const [x, y, width, height] = frame, { unit, to } = scaleOf(frame), { tokens } = state.problem, gamma = scores(state.problem);
    pen.save();
    pen.beginPath(); pen.rect(x, y, width, height); pen.clip();
    pen.strokeStyle = colors.line;
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    const w = times(model.W, state.problem.query), length = Math.hypot(...w), origin = to([0, 0]);
    const end = (v) => to(v.map((u) => (0.62 * u) / Math.hypot(...v)));
    const aim = solution(tokens, found.top, state.p);
    if (length) {
      const across = [-w[1] / length, w[0] / length], at = tokens[found.top];
      pen.strokeStyle = colors.second;
      pen.beginPath();
      for (const far of [-5, 5]) pen.lineTo(...to([at[0] + far * across[0], at[1] + far * across[1]]));
      pen.stroke();
      if (aim) arrow(pen, origin, end(aim), colors.soft, 1.5, [5, 4]);
      arrow(pen, origin, end(w), colors.second, 3);
    }
    const span = [Math.min(...gamma), Math.max(...gamma)];
    tokens.forEach((token, n) => {
      const [a, b] = to(token);
      pen.beginPath(); pen.arc(a, b, 9, 0, 7);
      pen.fillStyle = colors.back;
      pen.fill();
      pen.globalAlpha = 0.08 + (0.92 * (gamma[n] - span[0])) / (span[1] - span[0] || 1);
      pen.fillStyle = colors.first;
      pen.fill();
      pen.globalAlpha = 1;
      pen.strokeStyle = colors.text;
      pen.lineWidth = 1;
      pen.stroke();
      if (length && n === found.top) { pen.beginPath(); pen.arc(a, b, 14, 0, 7); pen.strokeStyle = colors.second; pen.lineWidth = 2.5; pen.stroke(); }
      if (n === state.chosen) { pen.strokeStyle = colors.text; pen.lineWidth = focused ? 2.5 : 1; pen.setLineDash([3, 3]); pen.strokeRect(a - 18, b - 18, 36, 36); pen.setLineDash([]); }
      const left = a + 78 > x + width, up = left ? -24 : 13, text = `${NAMES[n]} ${signed(gamma[n])}`, space = pen.measureText(text).width;
      pen.fillStyle = colors.back;
      pen.globalAlpha = 0.85;
      pen.fillRect(left ? a + 11 - space : a + 14, b - up - 8, space + 6, 15);
      pen.globalAlpha = 1;
      write(pen, text, left ? a + 14 : a + 17, b - up, colors.text, left ? "right" : "left");
    });
    pen.restore();
  }
  const signed = (v) => `${v < 0 ? "−" : "+"}${Math.abs(v).toFixed(2)}`;

  function draw(pen, view) {
    const { colors, state, model, width } = view, place = frames(width), found = evaluate(model.W, state.problem);
    const frame = ([x, y, w, height]) => ({ x, y, width: w, height });
    drawPlane(pen, place.plane, view, found);
    const bars = axes(pen, frame(place.bars), colors, { title: "attention", x: [-0.6, 5.6], y: [0, 1], ticks: [0, 0.5, 1] });
    found.attention.forEach((share, n) => {
      pen.fillStyle = n === found.top ? colors.second : colors.soft;
      const half = (bars.toX(1) - bars.toX(0)) * 0.3;
      pen.fillRect(bars.toX(n) - half, bars.toY(share), 2 * half, bars.bottom - bars.toY(share));
      write(pen, NAMES[n], bars.toX(n), bars.bottom + 11, colors.text, "center");
    });
    const least = softplus(-Math.max(...scores(state.problem))), high = Math.max(0.8, ...model.losses), low = Math.min(0.3, least);
    const ticks = [low, (low + high) / 2, high];
    const to = axes(pen, frame(place.losses), colors, {
      title: "loss (dashed: the best token's)", x: [0, lastStep(model.step)], y: [low - 0.02, high + 0.02], ticks, xlabel: "steps", name: (v) => v.toFixed(2),
    });
    curve(pen, to, [least, ...Array(lastStep(model.step)).fill(least)], colors.soft, [5, 4], 1.2);
    curve(pen, to, model.losses, colors.second);
  }

  function words(model, state) {
    const { problem, p, far, chosen } = state, found = evaluate(model.W, problem), gamma = scores(problem);
    const [x, y] = problem.tokens[chosen], own = `${NAMES[chosen]}, the token to move, is at ${x.toFixed(2)}, ${y.toFixed(2)}.`;
    const lost = far && !model.onRay ? ` No matrix selects ${NAMES[chosen]}, which lies within the others: the start is zero.` : "";
    if (!Math.hypot(...model.W.flat())) return `Step ${model.step}, p = ${p}: W is zero, attention is even. ${own}${lost}`;
    const name = NAMES[found.top], share = 100 * found.attention[found.top], w = times(model.W, problem.query), aim = solution(problem.tokens, found.top, p);
    const angle = aim && (Math.acos(Math.min(1, dot(aim, w) / Math.hypot(...aim) / Math.hypot(...w))) * 180) / Math.PI;
    const praise = found.top === best(gamma) ? "the highest" : `not the highest, which is that of ${NAMES[best(gamma)]}`;
    return `Step ${model.step}, p = ${p}: ${share.toFixed(1)} % of attention on ${name}, of score ${signed(gamma[found.top])}, ${praise}. `
      + `Loss ${found.loss.toFixed(4)}, norm of W ${norm(model.W, p).toPrecision(3)}`
      + `${aim ? `, ${angle.toFixed(1)}° from the smallest matrix that selects ${name}` : ""}. ${own}${lost}`;
  }

  function listen(panel) {
    const { canvas, state } = panel, keys = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const inside = (v, reach) => Math.max(-reach, Math.min(reach, v));
    function put(token) {
      state.problem.tokens[state.chosen] = [inside(token[0], REACH.x), inside(token[1], REACH.y)];
      panel.touch();
    }
    canvas.addEventListener("keydown", (event) => {
      const move = keys[event.key], name = NAMES.indexOf(event.key.toUpperCase());
      if (event.ctrlKey || event.metaKey || event.altKey || (!move && (name < 0 || event.key.length > 1))) return;
      event.preventDefault();
      if (!move) { panel.change("chosen", name); panel.say(); return; }
      const size = event.shiftKey ? 0.01 : 0.1;
      put(state.problem.tokens[state.chosen].map((v, i) => Number((v + size * move[i]).toFixed(4))));
      panel.say();
    });
    const point = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    const scale = () => scaleOf(frames(canvas.clientWidth).plane);
    function hit(event) {
      const [a, b] = point(event), { to } = scale();
      const away = state.problem.tokens.map((token) => Math.hypot(to(token)[0] - a, to(token)[1] - b)), nearest = away.indexOf(Math.min(...away));
      return away[nearest] < 24 ? nearest : -1;
    }
    let held = false;
    canvas.addEventListener("pointerdown", (event) => {
      const token = hit(event);
      if (token < 0) return;
      held = true;
      canvas.setPointerCapture(event.pointerId);
      if (token !== state.chosen) panel.change("chosen", token);
    });
    canvas.addEventListener("pointermove", (event) => {
      canvas.style.cursor = held || hit(event) >= 0 ? "grab" : "";
      if (!held) return;
      const { unit, to } = scale(), [a, b] = point(event), [x, y] = to([0, 0]);
      put([(a - x) / unit, (y - b) / unit]);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { if (held) panel.say(); held = false; });
    // A finger on a token moves it; anywhere else it scrolls the page.
    canvas.addEventListener("touchstart", (event) => { if (hit(event.touches[0]) >= 0) event.preventDefault(); }, { passive: false });
  }

  for (const box of document.querySelectorAll('.attnbook-train[data-kind="tokens"]')) {
    const { starts, ...setup } = JSON.parse(box.dataset.setup), fresh = () => structuredClone(setup.problem);
    start(box, {
      title: "Attention in training",
      task: "Drag a token, or choose it and move it with the arrow keys.",
      help: "Six tokens in the plane: choose one by its letter, A to F, move it with the arrow keys, with shift in small steps",
      keys: true,
      state: { p: setup.p, far: setup.far, chosen: setup.chosen, scaleFree: true, problem: fresh() },
      controls: [
        { name: "p", label: "p of the norm", values: setup.ps },
        { name: "far", label: "start", values: starts, texts: starts.map((v) => (v ? `${v} × its solution` : "zero")) },
        { name: "chosen", label: "token", values: [0, 1, 2, 3, 4, 5], texts: [...NAMES] },
        { name: "scaleFree", label: "steps", values: [true, false], texts: ["scale-free", "plain"] },
      ],
      buttons: { "Tokens back": ({ state }) => { state.problem = fresh(); } },
      make: (state) => begin(state.problem, state),
      step: (model, state) => { advance(model, state.problem, { ...state, stepSize: setup.stepSize }); model.done = model.step >= MOST_STEPS; },
      height: (width) => frames(width).height,
      draw, words, listen,
    });
  }
})();
