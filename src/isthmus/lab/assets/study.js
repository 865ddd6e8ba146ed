"use strict";
(() => {
  const { byId, colour, count, axis, nearest, quantile, inPlot, fromZero, place, lastInLegend, empty, figure, present } = plots;
  const data = JSON.parse(document.getElementById("data").textContent);
  const strokeOf = (arm) => colour(data.arms[arm].colour);
  const dashOf = (arm) => (arm === data.control ? [7, 4] : data.arms[arm].again ? [2, 3] : undefined);

  const bits = (n) => (n == null ? "–" : n.toFixed(4));
  const percent = (n) => {
    const text = n.toFixed(2).replace("-", "−");
    return /^−?0\.00$/.test(text) ? "0.00" : n > 0 ? `+${text}` : text;
  };
  const short = (n) => (Math.abs(n) >= 1000 ? count(n) : `${+n.toPrecision(4)}`);

  /* Labels that would touch the one before them are left out. */
  const apart = (least) => (u, splits) => {
    let last = -Infinity;
    return splits.map((split) => {
      const at = u.valToPos(split, "x");
      if (at - last < least) return null;
      last = at;
      return split;
    });
  };

  const band = (u, series, curve) => {
    if (!u.series[series].show || curve.standard_error.some((error) => error == null)) return;
    inPlot(u, (ctx) => {
      const edge = (index, sign) => [
        u.valToPos(curve.tokens[index], "x", true),
        u.valToPos(curve.mean[index] + sign * curve.standard_error[index], "y", true),
      ];
      const indices = [...curve.tokens.keys()];
      ctx.fillStyle = strokeOf(curve.arm);
      ctx.globalAlpha = 0.2;
      ctx.beginPath();
      for (const index of indices) ctx.lineTo(...edge(index, 1));
      for (const index of indices.reverse()) ctx.lineTo(...edge(index, -1));
      ctx.fill();
    });
  };

  const curves = (host, drawn) => {
    if (!drawn.length) return empty(host, "No run of the longest case has ended yet.");
    const all = drawn.flatMap((curve) => curve.mean);
    const low = quantile(all, 0);
    const high = quantile(all, all.length > 8 * drawn.length ? 0.85 : 0.95);
    const pad = 0.08 * (high - low) || 0.05;
    const series = drawn.map((curve) => {
      const errors = new Map(curve.tokens.map((tokens, index) => [tokens, curve.standard_error[index]]));
      const error = (u, index) => (index == null ? null : errors.get(u.data[0][index]));
      return {
        label: curve.seeds < curve.runs ? `${curve.arm} (${curve.seeds} of ${curve.runs} seeds)` : curve.arm,
        stroke: strokeOf(curve.arm),
        dash: dashOf(curve.arm),
        width: 2,
        points: { show: false },
        value: (u, v, _, index) => (error(u, index) == null ? bits(v) : `${bits(v)} ± ${bits(error(u, index))}`),
      };
    });
    place(host, 300, {
      scales: { x: { time: false, range: fromZero }, y: { range: (_, min, max) => [Math.max(min, low - pad), Math.min(max, high + pad)] } },
      axes: [axis({ values: (_, splits) => splits.map(count), space: 70, size: 34 }), axis({ size: 52 })],
      series: [{ label: "tokens", value: (_, v) => count(v) }, ...series],
      cursor: { dataIdx: nearest, points: { size: 7 } },
      hooks: { ...lastInLegend(), drawAxes: [(u) => drawn.forEach((curve, index) => band(u, index + 1, curve))] },
    }, uPlot.join(drawn.map((curve) => [curve.tokens, curve.mean])));
  };

  const ground = (u) =>
    inPlot(u, (ctx, box, ratio) => {
      const y = (value) => u.valToPos(value, "y", true);
      ctx.fillStyle = colour("grid");
      ctx.fillRect(box.left, y(100 * data.margin), box.width, y(-100 * data.margin) - y(100 * data.margin));
      ctx.strokeStyle = colour("soft");
      ctx.lineWidth = ratio;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(box.left, y(0));
      ctx.lineTo(box.left + box.width, y(0));
      ctx.stroke();
    });

  /* Intervals of several arms at one value stand side by side. */
  const intervals = (u, lines) =>
    inPlot(u, (ctx, _, ratio) => {
      lines.forEach((line, index) => {
        if (!u.series[index + 1].show) return;
        const aside = (index - (lines.length - 1) / 2) * 7 * ratio;
        const x = (at) => u.valToPos(line.values[at], "x", true) + aside;
        const y = (share) => u.valToPos(100 * share, "y", true);
        ctx.strokeStyle = ctx.fillStyle = strokeOf(line.arm);
        ctx.globalAlpha = 0.5;
        ctx.lineWidth = 1.2 * ratio;
        ctx.setLineDash((dashOf(line.arm) ?? []).map((length) => length * ratio));
        ctx.beginPath();
        line.values.forEach((_, at) => ctx.lineTo(x(at), y(line.mean[at])));
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.setLineDash([]);
        ctx.lineWidth = 2 * ratio;
        line.values.forEach((_, at) => {
          ctx.beginPath();
          if (line.low[at] != null) {
            ctx.moveTo(x(at), y(line.low[at]));
            ctx.lineTo(x(at), y(line.high[at]));
            ctx.stroke();
          }
          ctx.beginPath();
          ctx.arc(x(at), y(line.mean[at]), 3.5 * ratio, 0, 2 * Math.PI);
          ctx.fill();
        });
      });
    });

  const differences = (host, lines) => {
    if (!lines.length) return empty(host, "No difference to show yet.");
    const values = [...new Set(lines.flatMap((line) => line.values))].sort((a, b) => a - b);
    const ends = lines.flatMap((line) => [...line.mean, ...line.low, ...line.high]).filter((end) => end != null);
    const low = 100 * Math.min(...ends, -data.margin);
    const high = 100 * Math.max(...ends, data.margin);
    const pad = 0.08 * (high - low);
    const log = values[0] > 0;
    const least = values[0];
    const most = values[values.length - 1];
    const stretch = most > least ? (most / least) ** 0.14 : 2;
    const slack = 0.14 * (most - least) || 1;
    const around = log ? [least / stretch, most * stretch] : [least - slack, most + slack];
    const series = lines.map((line) => {
      const at = (u, index) => (index == null ? -1 : line.values.indexOf(u.data[0][index]));
      return {
        label: line.arm,
        stroke: strokeOf(line.arm),
        paths: () => null,
        points: { show: false },
        value: (u, v, _, index) => {
          const found = at(u, index);
          if (v == null || found < 0) return "–";
          if (line.low[found] == null) return `${percent(v)} %`;
          return `${percent(v)} % (${percent(100 * line.low[found])} to ${percent(100 * line.high[found])})`;
        },
      };
    });
    place(host, 300, {
      scales: {
        x: { time: false, ...(log ? { distr: 3, log: 10 } : {}), range: (u, min, max) => (min === least && max === most ? around : [min, max]) },
        y: { range: () => [low - pad, high + pad] },
      },
      axes: [
        axis({ splits: () => values, filter: apart(42), values: (_, splits) => splits.map((v) => (v == null ? "" : short(v))), size: 34 }),
        axis({ values: (_, splits) => splits.map((v) => `${+v.toPrecision(6)} %`.replace("-", "−")), size: 62 }),
      ],
      series: [{ label: "at", value: (_, v) => (v == null ? "–" : short(v)) }, ...series],
      cursor: { dataIdx: nearest, points: { show: false } },
      hooks: { ...lastInLegend(), drawAxes: [ground], draw: [(u) => intervals(u, lines)] },
    }, uPlot.join(lines.map((line) => [line.values, line.mean.map((share) => 100 * share)])));
  };

  const charts = (host, set) => {
    host.replaceChildren();
    host.className = set.differences ? "charts pair" : "charts";
    const [curve, curvePlot] = figure("Bits per byte over tokens", `mean over seeds, shaded: ± standard error${set.case ? `; ${set.case}` : ""}`);
    host.append(curve);
    curves(curvePlot, set.curves);
    if (!set.differences) return;
    const [made, plot] = figure(`Difference to ${data.control}`, `over ${set.differences.key}, with 95 % intervals; shaded: the margin`);
    host.append(made);
    differences(plot, set.differences.lines);
  };

  present(() => data.sets.forEach((set, index) => charts(byId(`set-${index}`), set)));
})();
