// Say what is wrong with how a notebook looks, as a list of sentences.
// `expected` has the numbers of text cells, formulas, figures and outputs that must be there.
(expected) => {
  const notebook = document.querySelector(".jp-Notebook");
  if (!notebook) return ["there is no notebook"];
  const all = (selector, root = notebook) => [...root.querySelectorAll(selector)];
  const found = [];
  const say = (what, element) =>
    found.push(`${what}: ${element.textContent.trim().replace(/\s+/g, " ").slice(0, 80)}`);

  // What is folded, such as hints, must look right when it is opened.
  const folded = all("details:not([open])");
  for (const details of folded) details.open = true;

  const texts = all(".jp-MarkdownCell .jp-RenderedMarkdown");
  const formulas = all("mjx-container", notebook);
  const figures = all(".jp-RenderedMarkdown img, .jp-OutputArea-output img, .jp-RenderedSVG svg");
  const outputs = all(".jp-OutputArea-output");
  const counts = { texts, formulas, figures, outputs };
  for (const [name, elements] of Object.entries(counts))
    if (elements.length !== expected[name])
      found.push(`${elements.length} ${name} instead of ${expected[name]}`);

  // MathJax keeps each formula a second time, for screen readers: nobody sees it, and it is as wide
  // as the machine's fonts make it.
  if (!document.querySelector("#unseen")) {
    const style = document.createElement("style");
    style.id = "unseen";
    style.textContent = "mjx-container mjx-assistive-mml { display: none !important }";
    document.head.append(style);
  }

  // Nothing is wider than its place; a code cell may scroll, as editors do.
  const right = notebook.getBoundingClientRect().right;
  for (const part of [...texts, ...outputs])
    for (const element of [part, ...all("table, img, svg, pre, mjx-container", part)]) {
      if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
        say(`${element.scrollWidth - element.clientWidth} pixels too wide`, element);
      if (element.getBoundingClientRect().right > right) say("beyond the page", element);
    }

  // Every formula is set.
  for (const error of all("mjx-merror, merror, [data-mjx-error]")) say("not a formula", error);
  for (const text of texts) {
    const copy = text.cloneNode(true);
    all("code, pre, mjx-container", copy).forEach((element) => element.remove());
    if (/\$|\\[([]|\\begin/.test(copy.textContent)) say("formula that is not set", copy);
  }

  // Every figure is there.
  for (const image of all("img"))
    if (!image.complete || image.naturalWidth === 0) found.push(`no figure: ${image.alt}`);

  // Output can be read: contrast as WCAG 2 defines it.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map(); // reading a canvas is slow, and the colors are few
  const rgba = (color) => {
    if (!known.has(color)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      known.set(color, canvas.getImageData(0, 0, 1, 1).data);
    }
    return known.get(color);
  };
  const luminance = (color) => {
    const [r, g, b] = [...rgba(color)].map((x) =>
      x <= 10 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4
    );
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
    return "white";
  };
  for (const output of outputs.filter((element) => element.closest(".jp-CodeCell"))) {
    const nodes = document.createTreeWalker(output, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      const element = nodes.currentNode.parentElement;
      if (!nodes.currentNode.data.trim() || element.closest("svg, style, script")) continue;
      const shades = [getComputedStyle(element).color, ground(element)].map(luminance);
      const contrast = (Math.max(...shades) + 0.05) / (Math.min(...shades) + 0.05);
      if (contrast < expected.contrast) say(`contrast ${contrast.toFixed(1)}`, element);
    }
  }
  for (const details of folded) details.open = false;
  return found;
}
