// Moves the radius with a slider, and reads epsilon as it moves. Without it the form does.
(() => {
  const form = document.querySelector("form[data-distance]");
  if (!form) return;
  const number = form.querySelector("#radius");
  const space = form.querySelector("#space");
  const output = document.querySelector("#epsilon");
  const far = Number(number.dataset.far);
  const slider = document.createElement("input");
  slider.type = "range";
  slider.min = String(far / 100);
  slider.max = String(far);
  slider.step = String(far / 100);
  slider.value = number.value;
  slider.setAttribute("aria-label", "Radius r");
  number.parentElement.after(slider);
  let asked = 0;
  const read = async () => {
    const mine = ++asked;
    const query = new URLSearchParams({ space: space.value, radius: number.value });
    const reply = await fetch(`${form.dataset.distance}?${query}`);
    if (!reply.ok || mine !== asked) return;
    const { epsilon } = await reply.json();
    output.textContent =
      epsilon === null ? "no cost" : epsilon === "inf" ? "unbounded" : up(epsilon);
  };
  // Costs are rounded up, to four digits, as everywhere.
  const up = (value) => {
    if (value === 0) return "0";
    const scale = 10 ** (3 - Math.floor(Math.log10(value)));
    return String(Number((Math.ceil(value * scale - 1e-9) / scale).toPrecision(4)));
  };
  // The mark of the chart moves with it: both axes begin at 0.
  const first = Number(number.value);
  const mark = () => {
    for (const svg of document.querySelectorAll("figure svg")) {
      const plot = svg.querySelector('[id$="-plot"]');
      const line = svg.querySelector('[id$="-radius"]');
      if (!plot || !line || !svg.checkVisibility()) continue;
      const move = (plot.getBBox().width * (Number(number.value) - first)) / far;
      line.setAttribute("transform", `translate(${move} 0)`);
    }
  };
  const move = (from, to) => {
    to.value = from.value;
    mark();
    read();
  };
  slider.addEventListener("input", () => move(slider, number));
  number.addEventListener("input", () => {
    if (number.valueAsNumber > 0) move(number, slider);
  });
})();
