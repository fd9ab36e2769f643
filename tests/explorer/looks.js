// What a person would see at once: texts that are cut off, and texts that are hard to read. Evaluates to an object of two functions.
({
  cutOff() {
    // Texts that end beyond the window, or beyond a box that hides what does not fit and cannot be scrolled.
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true }) || element.closest(".sr, .skip, dialog, option")) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const { left, right, width } = range.getBoundingClientRect();
      if (!width) continue;
      let [low, high] = [0, document.documentElement.clientWidth];
      let isFree = false;
      for (let box = element; box && box !== document.body; box = box.parentElement) {
        const style = getComputedStyle(box);
        if (["auto", "scroll"].includes(style.overflowX) || style.textOverflow === "ellipsis" || style.webkitLineClamp !== "none") { isFree = true; break; }
        if (style.overflowX === "hidden" || style.overflowX === "clip") {
          const own = box.getBoundingClientRect();
          [low, high] = [Math.max(low, own.left), Math.min(high, own.right)];
        }
      }
      if (!isFree && (right > high + 1 || left < low - 1)) found.push(`${node.data.trim().slice(0, 60)} (${Math.round(left)} to ${Math.round(right)}, in ${Math.round(low)} to ${Math.round(high)})`);
    }
    return found;
  },

  contrast() {
    // Texts whose contrast with their background is below 4.5 (WCAG AA). Cells of matrices and tokens have their own background.
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const rgba = (colour) => {
      if (!known.has(colour)) {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        known.set(colour, [...pen.getImageData(0, 0, 1, 1).data]);
      }
      return known.get(colour);
    };
    const light = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const background = (element) => {
      for (let box = element; box; box = box.parentElement) {
        const colour = rgba(getComputedStyle(box).backgroundColor);
        if (colour[3] > 200) return colour;
      }
      return [255, 255, 255, 255];
    };
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
      if (element.closest(".sr, .skip, :disabled, option, .token-line, .pick-button, [role='button'], .boot")) continue;
      const isDrawn = element instanceof SVGElement;
      if (isDrawn && element.previousElementSibling?.localName === "rect" && element.style.fill) continue;
      const style = getComputedStyle(element);
      const [a, b] = [light(rgba(isDrawn ? style.fill : style.color)), light(background(isDrawn ? element.closest("svg").parentElement : element))].sort((x, y) => y - x);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < 4.5) found.add(`${ratio.toFixed(2)}: ${element.className.baseVal ?? element.className} ${node.data.trim().slice(0, 30)}`);
    }
    return [...found];
  },
})
