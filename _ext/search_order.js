// Which result of the search comes first. Sphinx puts this into _static/language_data.js (html_search_scorer).
//
// Entries of the index score up to 100: claims, symbols, words of the glossary and, from search_order.py, the names of
// chapters. A chapter whose name is also a word of the glossary comes just before it, and a function or class that is
// typed in full, as linear_margin, before both. Below them are pages by the words of their titles, then functions whose
// name is a plain word, if nothing else is asked for, then pages by the words of their texts, chapters first; last is
// what mentions the words in the reference of the package.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, title, anchor, description, score]) => {
    if (description !== null) {
      if (score < Scorer.objNameMatch) return score / 10;
      if (anchor.startsWith("#module-")) return 4;
      const name = title.split(".").pop();
      if (/_|[a-z][A-Z]/.test(name)) return 102;
      // a plain word such as "loss" is rarely meant as the name of a function when it is one of several
      const query = new URLSearchParams(window.location.search).get("q") ?? "";
      return query.trim().toLowerCase() === name.toLowerCase() ? 14.5 : 0.9;
    }
    if (page.startsWith("reference/api")) return score / 5;
    // a word that is part of a claim's name, as in "SN-H-kernel"
    if (page.startsWith("reference/claims_") && anchor !== "" && score < 100) return score / 7;
    // the first page of a part: after its chapters, and not before a word of the glossary
    if (page.endsWith("/index") && anchor === "") return score === 100 ? 99.5 : score + 0.5;
    if (anchor !== "") return score;
    return page.startsWith("chapters/") ? score + 1 : score - 1;
  },
};

// A question finds what its words find that say something (search_order.py knows the others): first what the index has
// for a part of it, as "how many heads" in "how many heads should I use"; then pages that have all words, or, where none
// has, most of them. A rare word counts more than a common one, in a title three times as much as in the text.
(() => {
  const filled = (record) => (record === undefined ? [] : [record].flat());

  function pagesWith(words) {
    const { terms, titleterms, docnames, titles, filenames } = Search._index, scores = docnames.map(() => 0), having = docnames.map(() => 0);
    let most = 0;
    for (const word of words) {
      const best = new Map();
      for (const [index, whole, part] of [[terms, Scorer.term, Scorer.partialTerm], [titleterms, Scorer.title, Scorer.partialTitle]]) {
        const near = Object.hasOwn(index, word) ? [word] : word.length > 2 ? Object.keys(index).filter((term) => term.includes(word)) : [];
        for (const term of near) for (const file of filled(index[term])) best.set(file, Math.max(best.get(file) ?? 0, term === word ? whole : part));
      }
      if (!best.size) continue;  // said nowhere
      const weight = Math.log(1 + docnames.length / best.size);
      most += weight;
      for (const [file, score] of best) { scores[file] += weight * score; having[file] += weight; }
    }
    const enough = Math.max(most / 2, Math.max(...having) - 1e-9);
    return docnames.flatMap((page, file) => (most && having[file] >= enough ? [[page, titles[file], "", null, scores[file] / most, filenames[file]]] : []));
  }
  const excludes = (excluded, page) => [...excluded].some((word) => [Search._index.terms, Search._index.titleterms]
    .some((index) => filled(index[word]).includes(Search._index.docnames.indexOf(page))));
  Search.performTermsSearch = (words, excluded) => pagesWith(words).filter(([page]) => !excludes(excluded, page));

  // What the index has for parts of a query: entries of which a word says something.
  function within(query) {
    const { indexentries, docnames, titles, filenames } = Search._index, asked = ` ${splitQuery(query.toLowerCase()).join(" ")} `;
    const says = (word) => word.length > 2 && !stopwords.includes(word);
    return Object.entries(indexentries)
      .filter(([entry]) => entry.length < query.trim().length && asked.includes(` ${splitQuery(entry).join(" ")} `) && splitQuery(entry).some(says))
      .flatMap(([entry, places]) => places.filter(([, , main]) => main).map(([file, id]) => (
        [docnames[file], titles[file], id ? `#${id}` : "", null, 15 + (60 * entry.length) / query.trim().length, filenames[file]])));
  }

  // All results, the best first, each place once.
  const search = Search._performSearch;
  Search._performSearch = (query, ...rest) => {
    const more = within(query).map((item) => [...item.slice(0, 4), Scorer.score(item), item[5]]), found = search(query, ...rest);
    const all = [...more.sort(_orderResultsByScoreThenName), ...found].map((item, n) => ({ item, n }));
    all.sort((one, other) => one.item[4] - other.item[4] || one.n - other.n);
    const best = new Map(all.map(({ item }) => [`${item[0]}${item[2]}${item[3]}`, item]));
    return all.map(({ item }) => item).filter((item) => best.get(`${item[0]}${item[2]}${item[3]}`) === item);
  };

  // What a page says around most of the words, from PAGE_TEXTS (search_texts.py), in which a mark is on both sides of an anchor.
  function excerpt([page, , anchor], words) {
    const said = PAGE_TEXTS[page] ?? "", mark = `\ue000${anchor.slice(1)}\ue000`;
    const text = (anchor && said.includes(mark) ? said.slice(said.indexOf(mark)) : said).replace(/\ue000[^\ue000]*\ue000/g, "");
    if (anchor) return `${text.slice(0, 240).trim()} …`;
    const places = [...text.matchAll(new RegExp([...words].map(_escapeRegExp).join("|") || "$", "gi"))].map((found) => found.index);
    const around = (start) => new Set(places.filter((at) => at >= start && at < start + 200).map((at) => text.slice(at, at + 4).toLowerCase())).size;
    const start = Math.max(0, (places.sort((one, other) => around(other) - around(one) || one - other)[0] ?? 0) - 60);
    return `${start ? "… " : ""}${text.slice(start, start + 240).replace(start ? /^\S*\s/ : "", "").replace(/\s\S*$/, "")} …`;
  }
  Search.query = (query) => {
    const [asked, words, excluded, highlighted, objects] = Search._parseQuery(query);
    const results = Search._performSearch(asked, words, excluded, highlighted, objects).reverse();
    DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;  // each would fetch its page
    for (const item of results) {
      _displayItem(item, words, highlighted);
      if (item[3]) continue;
      const said = document.createElement("p");
      said.className = "context";
      said.textContent = excerpt(item, words);
      Search.output.lastChild.append(said);
      highlighted.forEach((word) => _highlightText(said, word, "highlighted"));
    }
    _finishSearch(results.length);
  };
})();
