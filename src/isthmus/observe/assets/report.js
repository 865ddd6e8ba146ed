"use strict";
(() => {
  const { byId, colour, element, count, precise, axis, nearest, quantile, inPlot, fromZero, place, empty, figure, present } = plots;
  const data = JSON.parse(document.getElementById("data").textContent);
  const islandColour = (index) => colour(data.islands[index].baseline ? "base" : `s${index % 6}`);
  const fragmentColour = (fragment) => colour(`f${fragment % 8}`);
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];

  const two = (n) => String(n).padStart(2, "0");
  const duration = (s) => {
    if (s == null) return "–";
    const whole = Math.round(s);
    if (whole < 3600) return `${Math.floor(whole / 60)}:${two(whole % 60)}`;
    return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  };
  const AXES = {
    tokens: { format: count },
    time: { format: duration, incrs: SECONDS },
  };

  const xAxis = (kind) => {
    const { format, incrs } = AXES[kind];
    return axis({ values: (_, splits) => splits.map(format), space: 70, size: 34, ...(incrs ? { incrs } : {}) });
  };

  const rule = (u, value, label) => {
    if (value == null) return;
    inPlot(u, (ctx, box, ratio) => {
      const y = Math.round(u.valToPos(value, "y", true));
      ctx.strokeStyle = ctx.fillStyle = colour("soft");
      ctx.lineWidth = ratio;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(box.left, y);
      ctx.lineTo(box.left + box.width, y);
      ctx.stroke();
      ctx.font = `${11 * ratio}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.fillText(label, box.left + box.width - 4 * ratio, y - 4 * ratio);
    });
  };

  /* lines: one {x, y, smooth} per island; kind: "tokens" or "time". */
  const lineChart = (host, lines, kind, { share, points, digits, xz, nothing }) => {
    const shown = lines.map((line, index) => ({ ...line, index })).filter((line) => line.y.some((v) => v != null));
    if (!shown.length) return empty(host, nothing);
    const columns = uPlot.join(shown.map((line) => (points ? [line.x, line.y] : [line.x, line.y, line.smooth])));
    const all = shown.flatMap((line) => line.y).filter((v) => v != null);
    const low = Math.min(...[quantile(all, 0), xz].filter((v) => v != null));
    const high = Math.max(quantile(all, share), xz ?? 0);
    const pad = 0.08 * (high - low) || 0.1;
    const series = shown.flatMap(({ index }) => {
      const stroke = islandColour(index);
      const label = data.islands[index].name;
      const dash = data.islands[index].baseline ? [7, 4] : index >= 6 ? [2, 3] : undefined;
      const value = (_, v) => precise(digits)(v);
      const line = { label, stroke, dash, value, spanGaps: false, width: 2 };
      if (points) return [{ ...line, points: { show: true, size: 6, fill: stroke } }];
      return [{ ...line, dash: undefined, width: 1, alpha: 0.22, points: { show: false } }, { ...line, points: { show: false } }];
    });
    const plot = place(host, 280, {
      scales: { x: { time: false, range: fromZero }, y: { range: (_, min, max) => [Math.max(min, low - pad), Math.min(max, high + pad)] } },
      axes: [xAxis(kind), axis({ size: 48 })],
      series: [{ label: kind, value: (_, v) => AXES[kind].format(v) }, ...series],
      cursor: { dataIdx: nearest, points: { size: 7 } },
      hooks: { draw: [(u) => rule(u, xz, "xz -6")] },
    }, columns);
    if (!points)
      plot.root.querySelectorAll(".u-legend .u-series").forEach((row, i) => {
        if (i % 2 === 1) row.style.display = "none";
      });
  };

  const losses = () => {
    const options = { share: 0.97, digits: 3, nothing: "No training step recorded yet." };
    lineChart(byId("loss-tokens"), data.loss_by_tokens, "tokens", options);
    lineChart(byId("loss-time"), data.loss_by_time, "time", options);
  };

  const scores = () => {
    const host = byId("score-charts");
    if (!data.evaluations.length) return empty(host, "No evaluation recorded yet.");
    host.replaceChildren();
    for (const set of data.evaluations) {
      const pair = element("div", "pair");
      host.append(pair);
      const share = set.by_tokens.flatMap((line) => line.y).length > 6 ? 0.85 : 1;
      for (const [kind, note] of [["tokens", "over tokens of the whole run"], ["time", "over time"]]) {
        const [made, plot] = figure(set.set, note);
        pair.append(made);
        lineChart(plot, set[`by_${kind}`], kind, { share, points: true, digits: 4, xz: set.xz, nothing: "–" });
      }
    }
  };

  const end = Math.max(
    1,
    ...data.link.map((link) => (link.x.length ? link.x[link.x.length - 1] + link.bin_s : 0)),
    ...data.timeline.bars.map((bar) => bar.end),
  );
  const widened = (xs, ...columns) => [[Math.min(0, xs[0] ?? 0), ...xs, end], ...columns.map((c) => [null, ...c, null])];
  const edges = new Set(data.timeline.lanes.map((lane) => lane.edge.join("\n"))).size;
  const laneNames = data.timeline.lanes.map(({ edge, fragment }) => (edges > 1 ? `${edge[0]} – ${edge[1]} · ${fragment}` : `fragment ${fragment}`));
  /* The link plots and the timeline share their time axis, so also its left end. */
  const gutter = (host) => Math.max(48, Math.min(20 + 6.4 * Math.max(0, ...laneNames.map((name) => name.length)), 0.34 * host.clientWidth));
  const SYNC = { key: "time", scales: ["x", null] };

  const strip = (u, publications) =>
    inPlot(u, (ctx, box, ratio) => {
      for (const { start, end, fragment } of publications) {
        const from = u.valToPos(start, "x", true);
        const to = Math.max(u.valToPos(end, "x", true), from + ratio);
        ctx.fillStyle = fragmentColour(fragment);
        ctx.fillRect(from, box.top, to - from, 9 * ratio);
      }
    });

  const swatches = () => {
    const row = element("div", "swatches");
    for (let fragment = 0; fragment < Math.min(data.fragments, 8); fragment++) {
      const item = element("span");
      const dot = element("i");
      dot.style.background = fragmentColour(fragment);
      item.append(dot, `fragment ${fragment}${data.fragments > 8 ? ", …" : ""}`);
      row.append(item);
    }
    return row;
  };

  const links = () => {
    const host = byId("link-charts");
    if (!data.link.length) return empty(host, "Nothing crossed a link.");
    host.replaceChildren(swatches());
    for (const link of data.link) {
      const index = data.islands.findIndex((island) => !island.baseline && island.name === link.island);
      const note = link.bin_s > 0.11 ? `the busiest 100 ms of every ${link.bin_s.toFixed(1)} s` : "in windows of 100 ms";
      const [made, plot] = figure(link.island, note);
      host.append(made);
      const peak = Math.max(link.limit ?? 0, quantile(link.sent, 1), quantile(link.received, 1)) || 1;
      const stroke = islandColour(index);
      const value = (_, v) => (v == null ? "–" : `${v.toPrecision(3)} Mbit/s`);
      place(plot, 190, {
        scales: { x: { time: false }, y: { range: () => [0, peak * 1.28] } },
        axes: [xAxis("time"), axis({ size: gutter(host) })],
        series: [
          { label: "time", value: (_, v) => duration(v) },
          { label: "sent", stroke, fill: `${stroke}33`, width: 1.4, value, points: { show: false } },
          { label: "received", stroke: colour("soft"), width: 0.8, alpha: 0.6, value, points: { show: false } },
        ],
        cursor: { sync: SYNC, y: false },
        hooks: { draw: [(u) => rule(u, link.limit, `limit ${+(link.limit ?? 0).toPrecision(3)} Mbit/s`), (u) => strip(u, link.publications)] },
      }, widened(link.x, link.sent, link.received));
    }
  };

  const halfBox = (u, lane, half) => {
    const top = u.valToPos(lane + 0.06 + half * 0.44, "y", true);
    return [top, u.valToPos(lane + 0.06 + half * 0.44 + 0.42, "y", true) - top];
  };

  const drawTimeline = (u, { bars, down, lanes }) =>
    inPlot(u, (ctx, box, ratio) => {
      ctx.fillStyle = colour("down");
      for (const span of down) {
        const from = u.valToPos(span.start, "x", true);
        const [top, height] = halfBox(u, span.lane, span.half);
        ctx.fillRect(from, top, Math.max(u.valToPos(span.end, "x", true) - from, ratio), height);
      }
      ctx.strokeStyle = colour("rule");
      ctx.lineWidth = ratio;
      for (let lane = 1; lane < lanes.length; lane++) {
        const y = Math.round(u.valToPos(lane, "y", true));
        ctx.strokeRect(box.left - 2, y, box.width + 4, 0);
      }
      for (const bar of bars) {
        const from = u.valToPos(bar.start, "x", true);
        const width = Math.max(u.valToPos(bar.end, "x", true) - from, 1.5 * ratio);
        const [top, height] = halfBox(u, bar.lane, bar.half);
        ctx.fillStyle = fragmentColour(bar.fragment);
        ctx.fillRect(from, top, width, height);
        if (!bar.late) continue;
        ctx.strokeStyle = colour("late");
        ctx.lineWidth = 1.6 * ratio;
        ctx.strokeRect(from, top, width, height);
      }
    });

  const describe = (u) => {
    const detail = byId("timeline-detail");
    const { left, top } = u.cursor;
    if (left == null || left < 0) return void (detail.textContent = "");
    const at = u.posToVal(left, "x");
    const y = u.posToVal(top, "y");
    const slack = u.posToVal(left + 3, "x") - at;
    const half = y - Math.floor(y) < 0.5 ? 0 : 1;
    const found = data.timeline.bars.find(
      (bar) => bar.lane === Math.floor(y) && bar.half === half && bar.start - slack <= at && at <= bar.end + slack,
    );
    detail.textContent = found
      ? `${found.island} met ${found.peer}: fragment ${found.fragment}, version ${found.version}${found.final ? ", final" : ""}; left at ${duration(found.start)}, ` +
        `arrived after ${(found.end - found.start).toFixed(1)} s and ${found.steps} steps${found.late ? ", late" : ""}; own weight ${found.weight}${found.adopted ? "; adopted" : ""}`
      : "";
  };

  const timeline = () => {
    const host = byId("timeline-chart");
    const { lanes, bars, one_in } = data.timeline;
    if (!lanes.length) return empty(host, "No meeting recorded yet.");
    host.replaceChildren();
    const [made, plot] = figure(
      edges === 1 ? `${lanes[0].edge[0]} (above) and ${lanes[0].edge[1]} (below)` : `${edges} edges`,
      one_in > 1 ? `one meeting in ${one_in} is drawn` : `${bars.length} arrivals`,
    );
    host.append(made);
    const each = Math.max(14, Math.min(36, Math.floor(560 / lanes.length)));
    place(plot, each * lanes.length + 46, {
      legend: { show: false },
      scales: { x: { time: false }, y: { range: () => [0, lanes.length], dir: -1 } },
      axes: [
        xAxis("time"),
        axis({ size: gutter(host), grid: { show: false }, ticks: { show: false }, splits: () => lanes.map((_, lane) => lane + 0.5), values: () => laneNames }),
      ],
      series: [{}, { points: { show: false } }],
      cursor: { sync: SYNC, y: false, points: { show: false } },
      hooks: { draw: [(u) => drawTimeline(u, data.timeline)], setCursor: [describe] },
    }, [[0, end], [null, null]]);
  };

  present(() => {
    losses();
    scores();
    links();
    timeline();
  });
})();
