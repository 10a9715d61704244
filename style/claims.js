// The filter of a page of the claims ledger: shows the claims that match all fields, counts them, and keeps the choice in
// the address. The ledger's first page has no claims; it leads an address of a claim on to the page of its paper.
(function () {
  const form = document.querySelector("form.claim-filter");
  if (!form) {
    const home = document.querySelector(`[data-prefix="${location.hash.slice(1).split("-")[0]}"]`);
    if (home) location.replace(home.dataset.page + location.hash);
    return;
  }
  const fields = ["status", "source", "text"].map((name) => form.elements[name]);
  const claims = [...document.querySelectorAll("section.claim")];
  const groups = [...new Set(claims.map((claim) => claim.parentElement))];
  const count = form.querySelector("output");

  function matches(claim, words) {
    return fields.every((field) => field.name === "text" || !field.value || claim.dataset[field.name] === field.value)
      && words.every((word) => claim.dataset.text.includes(word));
  }

  function update() {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const claim of claims) {
      claim.hidden = !matches(claim, words);
      shown += !claim.hidden;
    }
    for (const group of groups) {
      group.hidden = claims.every((claim) => claim.hidden || claim.parentElement !== group);
    }
    count.textContent = `${shown} of ${claims.length} claims shown`;
  }

  function remember() {  // in the address, so that a choice can be sent to somebody
    const chosen = new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.name, field.value]));
    history.replaceState(null, "", chosen.size ? `#?${chosen}` : location.pathname + location.search);
  }

  function follow() {  // an address names a choice (#?paper=...) or one claim, which must not be a hidden one
    const name = location.hash.slice(1);
    if (name.startsWith("?")) {
      const chosen = new URLSearchParams(name.slice(1));
      for (const field of fields) field.value = chosen.get(field.name) || "";
      update();
      return;
    }
    const place = document.getElementById(decodeURIComponent(name));  // of a claim, or of one that is part of it now
    const claim = place && place.closest("section.claim");
    if (!claim) return;
    if (claim.hidden) { form.reset(); update(); }
    const details = claim.querySelector("details");
    if (details) details.open = true;
    claim.scrollIntoView();
    setTimeout(() => claim.scrollIntoView(), 300);  // again, when the heights of the claims above are known
  }

  form.hidden = false;
  form.addEventListener("input", () => { update(); remember(); });
  form.addEventListener("reset", () => setTimeout(() => { update(); remember(); }));
  window.addEventListener("hashchange", follow);
  update();
  follow();
})();
