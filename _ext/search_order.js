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
