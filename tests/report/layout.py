"""What is wrong with the layout of a page that a browser shows.

Each check is an expression that the browser evaluates; the answer is a list, empty for
a sound page.
"""

from __future__ import annotations

from tests.report.browser import Browser

# Wider than the screen, or (outside of boxes that scroll) beyond its right edge.
BEYOND = """
  (() => {
    const wide = document.scrollingElement.scrollWidth - innerWidth;
    const found = wide > 0 ? [`the page is ${wide} pixels wider than the screen`] : [];
    const scrolls = e => e.parentElement !== null && (
      /auto|scroll|hidden/.test(getComputedStyle(e.parentElement).overflowX)
      || scrolls(e.parentElement));
    for (const e of document.querySelectorAll('main *, header *')) {
      if (!e.checkVisibility({visibilityProperty: true})) continue;
      const box = e.getBoundingClientRect();
      if (box.width > 0 && box.right > innerWidth + 1 && !scrolls(e))
        found.push(`beyond the edge: ${e.outerHTML.slice(0, 80)}`);
    }
    return found;
  })()
"""

# What paper would cut off: boxes that scroll on the screen.
CUT_OFF = """
  [...document.querySelectorAll('main *')].filter(e =>
    e.checkVisibility() && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1
    && /auto|scroll|hidden/.test(getComputedStyle(e).overflowX)
    && getComputedStyle(e).position !== 'absolute'
  ).map(e => `cut off by ${e.scrollWidth - e.clientWidth} pixels: `
    + `${e.tagName} ${e.textContent.trim().slice(0, 60)}`)
"""

# Letters whose colour is too near to the colour behind them (WCAG AA: 4.5 to 1, and 3
# to 1 for large ones). Boxes above an image are left out.
PALE = """
  (() => {
    document.getAnimations().forEach(a => a.finish());  // colours on their way
    const canvas = document.createElement('canvas').getContext(
      '2d', {willReadFrequently: true});
    const rgba = colour => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (front, back) => [0, 1, 2].map(
      i => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
    const light = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map(v => v / 255).map(
        v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = e => {
      const layers = [];
      for (; e !== null; e = e.parentElement) {
        const colour = rgba(getComputedStyle(e).backgroundColor);
        layers.push(colour);
        if (colour[3] === 1) break;
      }
      return layers.reverse().reduce((back, front) => over(front, back),
        [255, 255, 255, 1]);
    };
    const found = new Map();
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walk.nextNode()) !== null;) {
      const e = node.parentElement;
      if (!node.data.trim() || e.closest('svg, script, style, noscript')) continue;
      const seen = {visibilityProperty: true, opacityProperty: true};
      if (!e.checkVisibility(seen)) continue;
      const style = getComputedStyle(e);
      const back = behind(e), front = over(rgba(style.color), back);
      const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
      const ratio = (high + 0.05) / (low + 0.05);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
      if (ratio < (large ? 3 : 4.5))
        found.set(`${e.tagName}.${e.className} ${style.color}`,
          `${ratio.toFixed(2)} to 1: ${e.tagName}.${e.className} ${style.color} `
          + `on ${back.map(Math.round)} ${node.data.trim().slice(0, 40)}`);
    }
    return [...found.values()];
  })()
"""

# Pictures that did not load.
MISSING = """
  [...document.images].filter(i => i.complete && i.naturalWidth === 0).map(i => i.src)
"""

# Words of a drawing that lie on one another.
OVERLAPS = """
  (() => {
    const found = [];
    for (const svg of document.querySelectorAll('svg')) {
      if (svg.getBoundingClientRect().width === 0) continue;
      const words = [...svg.querySelectorAll('text')].filter(
        t => t.textContent.trim() && t.checkVisibility({opacityProperty: true})
      ).map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
      words.forEach(([text, a], i) => words.slice(i + 1).forEach(([other, b]) => {
        const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (across > 2 && down > 0.35 * Math.min(a.height, b.height))
          found.push(`${text} lies on ${other}`);
      }));
    }
    return found;
  })()
"""

# Words of a drawing that stick out of it.
OUTSIDE = """
  [...document.querySelectorAll('svg')].flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(t => {
      const box = t.getBoundingClientRect();
      return box.left < frame.left - 1 || box.right > frame.right + 1
        || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }).map(t => `outside: ${t.textContent.trim()}`);
  })
"""


def on_screen(browser: Browser) -> list[str]:
    """What is wrong with the page that a browser shows."""
    checks = (BEYOND, PALE, MISSING, OVERLAPS)
    return [fault for check in checks for fault in browser.evaluate(check)]


def on_paper(browser: Browser, *, dark: bool = False) -> list[str]:
    """What is wrong with it when it is printed, from a light or a dark screen."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    checks = (BEYOND, CUT_OFF, PALE, OVERLAPS)
    found = [fault for check in checks for fault in browser.evaluate(check)]
    browser.call("Emulation.setEmulatedMedia", media="", features=[scheme])
    return found
