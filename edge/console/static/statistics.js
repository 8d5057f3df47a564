// Draws the numbers of the statistics' table as lines, in the colours of the page.

const figure = document.querySelector("figure.chart");
const dark = matchMedia("(prefers-color-scheme: dark)");
const COLOURS = ["--accent", "--good", "--warn", "--bad", "--muted"];
let chart = null;

function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const names = JSON.parse(figure.dataset.names);
  const days = JSON.parse(figure.dataset.days).map((day) => Date.parse(`${day}T00:00:00Z`) / 1000);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const lines = names.map((label, index) => ({ label, width: 2, stroke: colour(COLOURS[index % COLOURS.length]) }));
  chart?.destroy();
  chart = new uPlot(
    {
      width: figure.clientWidth - 48,
      height: 280,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [{ ...axis, incrs: [1, 2, 7, 14, 28, 91, 364].map((days) => days * 86400), values: (self, marks) => marks.map((mark) => new Date(mark * 1000).toISOString().slice(5, 10)) }, axis],
      series: [{ label: figure.dataset.day, value: (self, mark) => (mark ? new Date(mark * 1000).toISOString().slice(0, 10) : "–") }, ...lines],
      scales: { y: { range: (self, least, most) => [Math.min(0, least), most || 1] } },
    },
    [days, ...JSON.parse(figure.dataset.series)],
    figure,
  );
}

if (figure && window.uPlot) {
  draw();
  dark.addEventListener("change", draw);
  new ResizeObserver(() => {
    if (chart && chart.width !== figure.clientWidth - 48) chart.setSize({ width: figure.clientWidth - 48, height: 280 });
  }).observe(figure);
}
