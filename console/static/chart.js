// Draws the numbers of a figure as lines, in the colours of the page: over days, or over a time in a unit.

const dark = matchMedia("(prefers-color-scheme: dark)");
const COLOURS = ["--accent", "--good", "--warn", "--muted", "--bad", "--violet", "--teal", "--magenta"];
const DASHES = [[], [10, 5], [3, 4], [12, 4, 3, 4], [6, 3]]; // lines differ without their colours too
const WHOLE = [...Array(12).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
const HEIGHT = 280;
const HEADROOM = 1.05;
const drawn = new Map();

function overDays(figure) {
  const days = JSON.parse(figure.dataset.marks).map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const day = (mark) => new Date(mark * 1000).toISOString().slice(0, 10);
  return {
    marks: days,
    points: {},
    options: { tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") },
    x: { time: true },
    axis: { incrs: [1, 2, 7, 14, 28, 91, 364].map((days) => days * 86400), values: (self, marks) => marks.map((mark) => day(mark).slice(5)) },
    text: day,
  };
}

function overTime(figure) {
  const unit = figure.dataset.unit;
  return {
    marks: JSON.parse(figure.dataset.marks),
    options: {},
    points: { show: false },
    x: { time: false },
    axis: { values: (self, marks) => marks.map((mark) => `${mark} ${unit}`) },
    text: (mark) => `${mark} ${unit}`,
  };
}

function draw(figure) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const over = figure.dataset.unit ? overTime(figure) : overDays(figure);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const lines = JSON.parse(figure.dataset.names).map((label, index) => ({ label, value: (self, number) => (number == null ? "–" : number.toLocaleString("en")), width: 2, points: over.points, stroke: colour(COLOURS[index % COLOURS.length]), dash: DASHES[(index + Math.floor(index / COLOURS.length)) % DASHES.length] }));
  const last = over.marks.length - 1;
  const showLast = (chart) => chart.legend.idx == null && chart.setLegend({ idx: last }, false);
  drawn.get(figure)?.destroy();
  const chart = new uPlot(
    {
      ...over.options,
      width: widthOf(figure),
      height: HEIGHT,
      axes: [{ ...axis, ...over.axis }, { ...axis, label: figure.dataset.values, labelSize: 22, labelFont: style.font, incrs: WHOLE, values: (self, marks) => marks.map((mark) => mark.toLocaleString("en")) }],
      series: [{ label: figure.dataset.mark, value: (self, mark) => (mark == null ? "–" : over.text(mark)) }, ...lines],
      hooks: { setLegend: [showLast] }, // without a pointer the legend has the numbers of the last mark
      scales: { x: over.x, y: { range: (self, least, most) => [Math.min(0, least), Math.max(most ?? 0, 1) * HEADROOM] } },
    },
    [over.marks, ...JSON.parse(figure.dataset.series)],
    figure,
  );
  showLast(chart);
  drawn.set(figure, chart);
}

function widthOf(figure) {
  const style = getComputedStyle(figure);
  return figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
}

const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const chart = drawn.get(target);
    if (chart && chart.width !== widthOf(target)) chart.setSize({ width: widthOf(target), height: HEIGHT });
  }
});

function drawNew() {
  for (const figure of drawn.keys()) {
    if (!figure.isConnected) {
      resized.unobserve(figure);
      drawn.delete(figure);
    }
  }
  for (const figure of document.querySelectorAll("figure.chart")) {
    if (drawn.has(figure)) continue;
    draw(figure);
    resized.observe(figure);
  }
}

if (window.uPlot) {
  drawNew();
  document.addEventListener("htmx:afterSettle", drawNew);
  dark.addEventListener("change", () => [...drawn.keys()].forEach(draw));
}
