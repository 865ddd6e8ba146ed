"use strict";
/* What the charts of every page share. */
const plots = (() => {
  const byId = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const FONT = "12px system-ui, sans-serif";

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const count = (n) => {
    if (n == null) return "–";
    for (const [size, name] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]])
      if (Math.abs(n) >= size) return `${+(n / size).toPrecision(3)}${name}`;
    return `${Math.round(n)}`;
  };
  const precise = (digits) => (n) => (n == null ? "–" : n.toFixed(digits));

  const axis = (options) => ({
    stroke: colour("soft"),
    font: FONT,
    grid: { stroke: colour("grid"), width: 1 },
    ticks: { stroke: colour("grid"), width: 1, size: 5 },
    ...options,
  });
  /* The nearest drawn point of each series, so that lines with different x can share a legend. */
  const nearest = (u, series, hovered) => {
    const values = u.data[series];
    for (let off = 0; off < values.length; off++) {
      if (values[hovered - off] != null) return hovered - off;
      if (values[hovered + off] != null) return hovered + off;
    }
    return hovered;
  };

  const quantile = (values, share) => {
    const sorted = values.filter((v) => v != null).sort((a, b) => a - b);
    return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] : 1;
  };

  const inPlot = (u, draw) => {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(left, top, width, height);
    u.ctx.clip();
    draw(u.ctx, u.bbox, devicePixelRatio || 1);
    u.ctx.restore();
  };

  /* Unzoomed, an axis starts at 0. */
  const fromZero = (u, min, max) => [min === u.data[0][0] ? 0 : min, max === min ? max + 1 : max];

  let placed = [];
  const place = (host, height, options, columns) => {
    host.replaceChildren();
    const width = Math.max(host.clientWidth, 240);
    const plot = new uPlot({ width, height, padding: [10, 12, 0, 0], ...options }, columns, host);
    placed.push({ plot, host, height });
    return plot;
  };
  /* Hooks of a plot whose legend tells the last value of every series while nothing is pointed at. */
  const lastInLegend = () => {
    const rest = (u) => {
      const idxs = u.data.map((values) => values.reduce((last, value, index) => (value == null ? last : index), null));
      u.setLegend({ idxs }, false);
    };
    return { ready: [rest], setCursor: [(u) => u.cursor.left < 0 && rest(u)] };
  };
  const empty = (host, text) => host.replaceChildren(element("p", "none", text));

  const figure = (title, note) => {
    const made = element("figure", "chart");
    const caption = element("figcaption");
    caption.append(element("b", "", title), " ", element("span", "", note));
    const plot = element("div", "plot");
    made.append(caption, plot);
    return [made, plot];
  };

  /* Draw all charts with build, and again when the colours change; keep them as wide as the page. */
  const present = (build) => {
    const again = () => {
      for (const { plot } of placed) plot.destroy();
      placed = [];
      build();
    };
    again();
    let pending = 0;
    addEventListener("resize", () => {
      cancelAnimationFrame(pending);
      pending = requestAnimationFrame(() => {
        for (const { plot, host, height } of placed)
          if (host.clientWidth && host.clientWidth !== plot.width) plot.setSize({ width: host.clientWidth, height });
      });
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    const print = (on) => {
      if (on) document.documentElement.dataset.theme = "light";
      else delete document.documentElement.dataset.theme;
      again();
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
  };

  return { byId, colour, element, count, precise, axis, nearest, quantile, inPlot, fromZero, place, lastInLegend, empty, figure, present };
})();
