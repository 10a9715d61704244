// On a phone the panels of a picture stand below each other, as large as their text needs: at least 11 pixels. Where the
// panels are is read from the picture, in which blank rows and columns lie between them and their labels. What is still
// wider than the screen scrolls in its own box; without scripts the whole picture does (book.css).
(function () {
  const LEAST = 11;  // pixels of text on the screen
  const PANEL = 50;  // what has a straight line of this length is a panel, not text; lengths are in CSS pixels

  // The runs of places that hold, as [start, end); a gap shorter than `least` ends none.
  function runs(start, end, holds, least = 1) {
    const found = [];
    for (let n = start; n < end; n++) {
      if (!holds(n)) continue;
      if (found.length && n - found.at(-1)[1] < least) found.at(-1)[1] = n + 1;
      else found.push([n, n + 1]);
    }
    return found;
  }
  const size = ([start, end]) => end - start;
  const span = (found) => (found.length ? [found[0][0], found.at(-1)[1]] : null);
  const longest = (found) => found.reduce((most, run) => (size(run) > size(most) ? run : most), [0, 0]);
  const gaps = (found) => found.slice(1).map((run, n) => [found[n][1], run[0]]);
  const afterWidestGap = (found) => { const between = gaps(found); return 1 + between.indexOf(longest(between)); };

  // The rows of what a picture shows, from top to bottom: each a list of pieces that may stand beside each other, a piece
  // a list of rectangles. `unit` is the number of dots to a CSS pixel. Null where there is nothing to cut.
  function cut({ data, width, height }, unit) {
    const dark = new Uint8Array(width * height);
    for (let n = 0; n < dark.length; n++) dark[n] = [0, 1, 2].some((c) => Math.abs(data[4 * n + c] - data[c]) > 8);
    const rowsInked = ([left, right]) => (y) => dark.subarray(y * width + left, y * width + right).includes(1);
    const columnsInked = ([top, bottom]) => (x) => { for (let y = top; y < bottom; y++) if (dark[y * width + x]) return true; return false; };
    const isTall = (band) => size(band) >= PANEL * unit;
    let left = 0;  // where panels and their labels begin

    // The panels of a band: where the axes start and end, and how far what belongs to them reaches to both sides.
    function panelsOf(band) {
      const parts = runs(left, width, columnsInked(band), 2), panels = [];
      const uprights = ([start, end]) => Array.from({ length: end - start }, (_, n) => size(longest(runs(...band, (y) => dark[y * width + start + n]))));
      parts.forEach((part, place) => {
        const line = longest(Array.from({ length: size(band) }, (_, n) => longest(runs(...part, (x) => dark[(band[0] + n) * width + x]))));
        if (size(line) < PANEL * unit) return;
        const lines = uprights(part), most = Math.max(...lines);
        panels.push({ place, axes: [part[0] + lines.findIndex((length) => length > 0.9 * most), line[1]] });
      });
      // A line below the left panel that reaches below the right one cannot be cut.
      const reaches = (part) => { const at = span(runs(...band, rowsInked(part))); return at[0] > band[0] + 0.8 * size(band) && size(at) > 5 * unit; };
      if (parts.some((part, place) => place > panels[0]?.place && place < panels.at(-1).place && reaches(part))) return { panels: [] };
      panels.forEach((panel, n) => {
        const before = n ? panels[n - 1].place : -1;
        panel.left = parts[before + 1][0];  // what lies between two panels labels the right one
        if (n) panels[n - 1].right = parts[before][1];
      });
      const rest = panels.length ? parts.slice(panels.at(-1).place + 1) : [];
      const legend = rest.length && size(span(rest)) > 90 * unit && Math.max(...uprights(span(rest))) < size(band) / 2;
      if (panels.length) panels.at(-1).right = parts[legend ? panels.at(-1).place : parts.length - 1][1];
      return { band, panels, legend: legend ? span(rest) : null };
    }

    // What of a band of text belongs to which panel; null if some of it belongs to all.
    function share(band, panels, ticks) {
      const parts = runs(left, width, columnsInked(band)), edges = [];
      for (const [n, { axes }] of panels.slice(1).entries()) {
        const low = panels[n].axes[1] - 20 * unit, high = axes[0] + 4 * unit;
        const free = gaps([[0, 0], ...parts, [width, width]]).map(([a, b]) => [Math.max(a, low), Math.min(b, high)]);
        const widest = longest(free);
        if (size(widest) < 4 * unit) return null;
        edges.push(widest[0]);
      }
      const own = panels.map((_, n) => parts.filter(([a, b]) => a >= (edges[n - 1] ?? 0) && b <= (edges[n] ?? width)));
      const besides = ({ left, axes }) => Math.min(left + 20 * unit, axes[0] - 12 * unit);  // where a vertical label may end
      const text = own.map((found, n) => found.filter((part) => part[1] > besides(panels[n])));
      const within = Math.max(0, ...text.flatMap(gaps).map(size));
      const between = panels.length > 1 ? Math.min(...gaps(text.map(span).filter(Boolean)).map(size)) : 18 * unit;  // entries of a legend
      const belongs = (run, { axes: [start, end] }) => !run
        || Math.abs(run[0] - start) < 6 * unit || Math.abs(run[0] + run[1] - start - end) < 12 * unit;  // begins with the axes, or lies in their middle
      return ticks || (within < between && text.every((run, n) => belongs(span(run), panels[n]))) ? own.map(span) : null;
    }

    // Bands of text from a row of panels outwards: first what belongs to single panels, then what belongs to all.
    function around(row, texts, below) {
      const own = [];
      for (const [n, band] of texts.entries()) {
        const shares = share(band, row.panels, below && n === 0 && band[0] - row.band[1] < 10 * unit);
        if (!shares) return { own, shared: texts.slice(n) };
        own.push({ band, shares });
      }
      return { own, shared: [] };
    }

    // The rows of panels, with the text above and below each.
    function rowsOfPanels() {
      const bands = runs(0, height, rowsInked([left, width])), found = bands.map((band) => (isTall(band) ? panelsOf(band) : { panels: [] }));
      const places = found.flatMap(({ panels }, n) => (panels.length ? [n] : []));
      return places.map((place, n) => {
        const row = found[place], before = n ? places[n - 1] : -1, after = places[n + 1] ?? bands.length;
        const start = n ? before + afterWidestGap(bands.slice(before, place + 1)) : 0;
        const end = after < bands.length ? place + afterWidestGap(bands.slice(place, after + 1)) : after;
        return { ...row, above: around(row, bands.slice(start, place).reverse(), false), below: around(row, bands.slice(place + 1, end), true) };
      });
    }
    const bare = ({ left, axes }) => axes[0] - left < 12 * unit;  // no numbers and no label at the vertical axis

    // A label along the left edge that is longer than a row of panels, and the only one, belongs to all and is turned.
    const edge = runs(0, width, columnsInked([0, height]))[0], letters = runs(0, height, rowsInked(edge));
    const beside = (letter) => runs(0, height, rowsInked([edge[1], width])).some((row) => isTall(row) && row[0] <= letter[0] && row[1] >= letter[1]);
    if (size(edge) < 22 * unit && !letters.every(beside)) left = edge[1];
    let rows = rowsOfPanels();
    if (left && !rows.every(({ panels }) => panels.slice(1).every(bare))) { left = 0; rows = rowsOfPanels(); }
    if (!rows.some(({ panels, legend, above, below }) => panels.length > 1 || legend || above.shared.length || below.shared.length)) return null;

    // The entries of a legend, or one label; a marker stays with its text.
    const words = (band) => runs(left, width, columnsInked(band), 18 * unit).reduce((entries, run) => {
      const last = entries.at(-1)?.[0].x;
      if (last && size(last) < 14 * unit) last[1] = run[1]; else entries.push([{ x: run, y: band }]);
      return entries;
    }, []);
    const alike = (one, other) => one.panels.length === other?.panels.length && one.panels.every(({ axes }, m) => Math.abs(axes[0] - other.panels[m].axes[0]) < 3 * unit);
    const untitled = (n) => n > 0 && n < rows.length && alike(rows[n], rows[n - 1]) && !rows[n].above.own.length && !rows[n].above.shared.length;
    function pieceOf({ band, panels, above, below }, next, m) {
      const panel = panels[m], piece = [{ x: [panel.left, panel.right], y: band }];
      for (const { band: y, shares } of [...above.own, ...below.own]) if (shares[m]) piece.push({ x: shares[m], y });
      if (!below.own.length && alike({ panels }, next)) {  // the numbers are those of the row below
        for (const { band: y, shares } of next.below.own) if (shares[m]) piece.push({ x: shares[m], y, down: band[1] - next.band[1], again: true });
      }
      const ticks = panel.axes[0] - panel.left, lender = panels.slice(0, m).reverse().find((other) => !bare(other));
      if (bare(panel) && ticks > 3 * unit && lender) {  // the numbers are those of a panel to the left
        piece.push({ x: [lender.left, lender.axes[0] - ticks], y: band, right: panel.axes[0] - lender.axes[0], again: true });
      }
      return piece;
    }
    const pieces = left ? [[[{ x: edge, y: span(letters), turned: true }]]] : [];
    rows.forEach((row, n) => {
      const { band, panels, legend, above, below } = row, list = [];
      if (!untitled(n)) {  // a row without titles continues the columns above it
        for (const m of panels.keys()) for (let k = n; k === n || untitled(k); k++) list.push(pieceOf(rows[k], rows[k + 1], m));
      }
      if (legend) list.push(runs(...band, rowsInked(legend)).map((y) => ({ x: legend, y })));
      pieces.push(...above.shared.reverse().map(words), list, ...below.shared.map(words));
    });
    function count({ x, y }) {
      let sum = 0;
      for (let n = y[0]; n < y[1]; n++) for (let m = x[0]; m < x[1]; m++) sum += dark[n * width + m];
      return sum;
    }
    // Whatever the picture shows is in a piece, or it stays whole.
    const shown = pieces.flat(2).filter(({ again }) => !again).reduce((sum, box) => sum + count(box), 0);
    return shown === count({ x: [0, width], y: [0, height] }) ? pieces.filter((row) => row.length) : null;
  }

  globalThis.attnbookPanels = { cut };
  if (typeof document === "undefined") return;  // only where the panels are is asked for

  const least = LEAST / ((document.currentScript.dataset.smallest * 100) / 72);  // a picture has 100 CSS pixels to an inch
  const phone = matchMedia("screen and (max-width: 640px)");

  function element(kind, attributes, ...children) {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // A box that scrolls sideways, for those who do not swipe.
  function reachable(box, what) {
    for (const [name, value] of Object.entries({ tabindex: 0, role: "group", "aria-label": `${what}, wider than the screen` })) box.setAttribute(name, value);
    return box;
  }

  function drawn(piece, image, background) {
    const boxes = piece.map(({ x, y, right = 0, down = 0 }) => ({ x, y, at: [x[0] + right, y[0] + down], end: [x[1] + right, y[1] + down] }));
    const [left, top] = [0, 1].map((n) => Math.min(...boxes.map(({ at }) => at[n])));
    const [width, height] = [Math.max(...boxes.map(({ end }) => end[0])) - left, Math.max(...boxes.map(({ end }) => end[1])) - top];
    const turned = piece[0].turned, canvas = element("canvas", turned ? { width: height, height: width } : { width, height });
    const pen = canvas.getContext("2d");
    if (turned) { pen.translate(height, 0); pen.rotate(Math.PI / 2); }
    pen.fillStyle = background;
    pen.fillRect(0, 0, width, height);
    for (const { x, y, at } of boxes) pen.drawImage(image, x[0], y[0], size(x), size(y), at[0] - left, at[1] - top, size(x), size(y));
    canvas.setAttribute("aria-hidden", "true");  // the picture itself, unseen, keeps its text
    return canvas;
  }

  // Puts the panels of the picture that a box shows below it; book.css shows them in its place on a phone.
  async function stack(box) {
    const image = box.querySelector(":scope > img:not([hidden])");
    await image.decode();
    if (image.hidden) return;  // the slider has moved on
    const { naturalWidth: width, naturalHeight: height } = image, unit = width / (parseFloat(image.style.width) || width);
    const pen = element("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
    pen.drawImage(image, 0, 0);
    const picture = pen.getImageData(0, 0, width, height), background = `rgb(${picture.data.slice(0, 3)})`;
    const room = box.clientWidth, fits = (width / unit) * least <= room, whole = [[[{ x: [0, width], y: [0, height] }]]];
    const rows = ((!fits && cut(picture, unit)) || whole).map((row) => row.map((piece) => drawn(piece, image, background)));
    const widest = Math.max(...rows.flat().map((canvas) => canvas.width)) / unit, scale = Math.min(1, Math.max(least, room / widest));
    const shown = rows.map((row) => element("div", { class: "attnbook-panels-row" }, ...row.map((canvas) => {
      const across = (canvas.width / unit) * scale;
      canvas.style.width = `${across}px`;
      return across < room + 1 ? canvas : reachable(element("div", { class: "attnbook-wide" }, canvas), "Picture");
    })));
    let panels = box.querySelector(":scope > .attnbook-panels");
    if (!panels) box.append(panels = element("div", { class: "attnbook-panels" }));
    const scrolled = [...panels.querySelectorAll(".attnbook-wide")].map((wide) => wide.scrollLeft);
    Object.assign(panels.style, { background, paddingInline: `${Math.max(0, Math.min(6, (room - widest * scale) / 2))}px` });
    panels.replaceChildren(...shown);
    panels.querySelectorAll(".attnbook-wide").forEach((wide, n) => { wide.scrollLeft = scrolled[n] || 0; });
    box.classList.add("attnbook-stacked");
  }

  const boxes = document.querySelectorAll(".attnbook-figure, .attnbook-slider > div");
  const tables = [...document.querySelectorAll("div.claim-card")];
  function all() {
    if (!phone.matches) return;
    boxes.forEach(stack);
    tables.filter((table) => table.scrollWidth > table.clientWidth).forEach((table) => reachable(table, "Table"));
  }
  phone.addEventListener("change", all);
  document.addEventListener("input", ({ target }) => {
    const box = target.closest(".attnbook-slider")?.querySelector(":scope > div");
    if (box && phone.matches) stack(box);
  });
  all();
})();
