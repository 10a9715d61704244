// The filter of the claims ledger: shows the claims that match all three fields, and counts them.
(function () {
  const form = document.querySelector("form.claim-filter");
  if (!form) return;
  const claims = [...document.querySelectorAll("section.claim")];
  const groups = [...new Set(claims.map((claim) => claim.parentElement))];
  const count = form.querySelector("output");

  function matches(claim, paper, status, words) {
    return (!paper || claim.dataset.paper === paper)
      && (!status || claim.dataset.status === status)
      && words.every((word) => claim.dataset.text.includes(word));
  }

  function update() {
    const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const claim of claims) {
      claim.hidden = !matches(claim, form.elements.paper.value, form.elements.status.value, words);
      shown += !claim.hidden;
    }
    for (const group of groups) {
      group.hidden = claims.every((claim) => claim.hidden || claim.parentElement !== group);
    }
    count.textContent = `${shown} of ${claims.length} claims shown`;
  }

  function showTarget() {  // a link to one claim must not lead to a hidden one
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.hidden) { form.reset(); update(); target.scrollIntoView(); }
  }

  form.hidden = false;
  form.addEventListener("input", update);
  window.addEventListener("hashchange", showTarget);
  update();
})();
