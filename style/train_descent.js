// Two descents on the population loss from the same start, side by side: Algorithm 1 and a rival. The formulas are those of
// attnbook/preconditioning/population.py, with names as there.
(function () {
  const MOST_STEPS = 3000, LOST = 1e8, LOWEST = 1e-16;
  const product = (a, b) => a.map((row) => b[0].map((_, j) => row.reduce((sum, v, k) => sum + v * b[k][j], 0)));
  const chain = (...matrices) => matrices.reduce(product);
  const turned = (a) => a[0].map((_, j) => a.map((row) => row[j]));
  const plus = (a, b, factor = 1) => a.map((row, i) => row.map((v, j) => v + factor * b[i][j]));
  const inner = (a, b) => a.flat().reduce((sum, v, n) => sum + v * b.flat()[n], 0);

  // The problem with a condition number: powers of its covariance, whose eigenvalues are spaced geometrically from its
  // root to one over it, and the map whose whitened form does not change with it.
  function problem({ axes, map }, kappa) {
    const last = axes.length - 1, power = (exponent) => chain(
      axes.map((row) => row.map((v, j) => v * kappa ** (exponent * (0.5 - j / last)))), turned(axes));
    const inverseRoot = power(-0.5);
    return { covariance: power(1), inverse: power(-1), inverseRoot, map: product(map, inverseRoot) };
  }

  // The layers at a start: near a minimum, random in whitened coordinates, or random as they are.
  function layers(setup, { inverseRoot }, start) {
    const { value, keyQuery } = setup.normal;
    if (start === "plain") return { value, keyQuery };
    const { minimum, displacement } = setup, whitened = start === "near"
      ? { value: plus(minimum.value, value, displacement), keyQuery: plus(minimum.keyQuery, keyQuery, displacement) } : setup.normal;
    return { value: product(whitened.value, inverseRoot), keyQuery: chain(inverseRoot, whitened.keyQuery, inverseRoot) };
  }

  function excessLoss({ value, keyQuery }, { covariance, map }) {
    const error = plus(chain(value, covariance, keyQuery), map, -1);
    return 0.5 * inner(error, product(error, covariance));
  }
  const difference = ({ value, keyQuery }, { covariance }) => plus(product(turned(value), value), chain(keyQuery, covariance, turned(keyQuery)), -1);

  // How unequal the layers are: 0 when in balance, 1 when one of them is negligible.
  function imbalance(at, known) {
    const grams = [product(turned(at.value), at.value), chain(at.keyQuery, known.covariance, turned(at.keyQuery))];
    const size = (m) => { const one = product(known.covariance, m); return Math.sqrt(Math.max(0, inner(one, turned(one)))); };
    return size(difference(at, known)) / (size(grams[0]) + size(grams[1]));
  }

  // The layers after one step: gradient of the loss, plus that of the balance penalty, preconditioned.
  function stepped({ value, keyQuery }, { covariance, inverse, map }, { stepSize, kind, penalty }) {
    const error = product(plus(chain(value, covariance, keyQuery), map, -1), covariance);
    let forValue = chain(error, turned(keyQuery), covariance), forKeys = chain(covariance, turned(value), error);
    if (penalty) {
      const weighted = chain(covariance, difference({ value, keyQuery }, { covariance }), covariance);
      forValue = plus(forValue, product(value, weighted), penalty / 2);
      forKeys = plus(forKeys, chain(weighted, keyQuery, covariance), -penalty / 2);
    }
    if (kind !== "none") forKeys = product(forKeys, inverse);
    if (kind === "two") [forValue, forKeys] = [product(forValue, inverse), product(inverse, forKeys)];
    return { value: plus(value, forValue, -stepSize), keyQuery: plus(keyQuery, forKeys, -stepSize) };
  }

  globalThis.attnbookDescent = { problem, layers, excessLoss, imbalance, stepped };
  if (typeof document === "undefined") return;  // only the formulas are asked for
  const { start, axes, write, curve, lastStep } = globalThis.attnbookTrain;

  function run(known, at, how) {
    return { known, at, how, excess: [excessLoss(at, known)], imbalance: [imbalance(at, known)], diverged: 0 };
  }
  function advance(one, step) {
    if (one.diverged) return;
    one.at = stepped(one.at, one.known, one.how);
    const excess = excessLoss(one.at, one.known);
    if (!(excess < LOST * one.excess[0])) { one.diverged = step; return; }
    one.excess.push(excess);
    one.imbalance.push(imbalance(one.at, one.known));
  }
  const finished = (one) => one.diverged || one.excess.at(-1) < LOWEST;

  const raised = (n) => [...String(n)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  function scientific(v) {
    if (v >= 0.01 && v < 1000) return v.toPrecision(3).replace(/\.?0+$/, "");
    const [digits, exponent] = v.toExponential(1).split("e");
    return `${digits} × 10${raised(Number(exponent))}`;
  }

  const frames = (width) => (width < 560
    ? [{ x: 0, y: 0, width, height: 270 }, { x: 0, y: 280, width, height: 170 }]
    : [{ x: 0, y: 0, width: width * 0.62, height: 300 }, { x: width * 0.62, y: 0, width: width * 0.38, height: 300 }]);

  function draw(pen, { colors, model, width }) {
    const [large, small] = frames(width), x = [0, lastStep(model.step)], every = model.runs.flatMap((one) => one.excess);
    const top = 10 ** Math.ceil(Math.log10(Math.max(...every.slice(0, 1), Math.min(1e6, every.reduce((a, b) => Math.max(a, b)))))), ticks = [];
    for (let tick = top; tick >= LOWEST; tick /= 1e4) ticks.push(tick);
    const name = (v) => `10${raised(Math.round(Math.log10(v)))}`, looks = [[colors.first, []], [colors.second, [7, 4]]];
    const to = axes(pen, large, colors, { title: "excess loss", x, y: [LOWEST, top], log: true, ticks, name, xlabel: "steps" });
    const balance = axes(pen, small, colors, { title: "imbalance of the layers", x, y: [0, 1], ticks: [0, 0.5, 1], xlabel: "steps" });
    model.runs.forEach((one, n) => {
      curve(pen, to, one.excess, looks[n][0], looks[n][1], 2.2);
      curve(pen, balance, one.imbalance, looks[n][0], looks[n][1], 2.2);
      const row = to.top + 10 + 17 * n, text = one.how.label + (one.diverged ? `: diverges at step ${one.diverged}` : "");
      const space = pen.measureText(text).width;
      pen.fillStyle = colors.back;
      pen.fillRect(to.right - space - 42, row - 9, space + 42, 17);
      write(pen, text, to.right - 4, row, colors.text, "right");
      curve(pen, { ...to, toX: (v) => to.right - space - 36 + 26 * v, toY: () => row }, [0, 1], ...looks[n], 2.2);
    });
  }

  function words(model, state) {
    const end = (one) => (one.diverged ? `diverges at step ${one.diverged}` : `excess loss ${scientific(one.excess.at(-1))}, imbalance ${one.imbalance.at(-1).toFixed(2)}`);
    const each = model.runs.map((one) => `${one.how.label} (step size ${one.how.stepSize}): ${end(one)}`);
    return `Step ${model.step}, condition number ${state.kappa}. ${each.join("; ")}.`;
  }

  for (const box of document.querySelectorAll('.attnbook-train[data-kind="descent"]')) {
    const setup = JSON.parse(box.dataset.setup), sizes = setup.stepSizes, rivals = setup.variants.slice(1);
    start(box, {
      title: "Two descents on the population loss from one start",
      task: "Turn the condition number: which curve moves? Then find the best step size of the rival.",
      state: setup.state,
      controls: [
        { name: "kappa", label: "condition number", values: setup.kappas, kind: "range" },
        { name: "size", label: "step of Algorithm 1", values: sizes, kind: "range" },
        { name: "rivalSize", label: "step of rival", values: sizes, kind: "range" },
        { name: "rival", label: "rival", values: rivals.map((v) => v.name), texts: rivals.map((v) => v.label) },
        { name: "start", label: "start", values: Object.keys(setup.starts), texts: Object.values(setup.starts) },
      ],
      make(state) {
        const known = problem(setup, state.kappa), at = layers(setup, known, state.start), chosen = rivals.find((v) => v.name === state.rival);
        return { step: 0, done: false, runs: [
          run(known, at, { ...setup.variants[0], stepSize: state.size }), run(known, at, { ...chosen, stepSize: state.rivalSize }),
        ] };
      },
      step(model) {
        model.step += 1;
        for (const one of model.runs) advance(one, model.step);
        model.done = model.step >= MOST_STEPS || model.runs.every(finished);
      },
      height: (width) => { const [large, small] = frames(width); return Math.max(large.height, small.y + small.height); },
      draw, words,
    });
  }
})();
