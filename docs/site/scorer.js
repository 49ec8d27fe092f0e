// Search finds an assignment before what the guides and the interfaces say of its topic.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const query = new URLSearchParams(location.search).get("q") ?? "";
    if (!page.startsWith("assignments/")) return score;
    return score + (!anchor && title.toLowerCase().includes(query.toLowerCase()) ? 100 : 20);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
