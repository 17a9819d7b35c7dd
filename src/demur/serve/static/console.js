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
  number.after(slider);
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
  slider.addEventListener("input", () => {
    number.value = slider.value;
    read();
  });
})();
