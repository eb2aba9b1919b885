// Texts of charts and phases; all others come from the server. monitor/serve/formats.py has the same four functions,
// and a test runs both over one table of cases.

export const DASH = "–";

// Python's %.4g
function general(value, digits) {
  if (value === 0) return "0";
  const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
  const strip = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent >= -4 && exponent < digits) return strip(value.toFixed(digits - 1 - exponent));
  const sign = exponent < 0 ? "-" : "+";
  const mantissa = strip(value.toExponential(digits - 1).split("e")[0]);
  return `${mantissa}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function number(value) {
  if (value === null || value === undefined || value === "") return DASH;
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size >= 1000 && size < 1e15 ? Math.round(value).toLocaleString("en-US") : general(value, 4);
}

// Millions, billions and trillions as M, B and T.
export function count(value) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]]) {
    if (known(value) && Math.abs(value) >= size) return `${general(value / size, 4)} ${letter}`;
  }
  return number(value);
}

export function duration(seconds) {
  if (!known(seconds)) return DASH;
  const s = Math.max(0, seconds);
  if (s < 60) return `${s.toFixed(1)} s`;
  const minutes = Math.floor(s / 60), hours = Math.floor(s / 3600), days = Math.floor(s / 86400);
  if (hours < 1) return `${minutes} min ${Math.floor(s % 60)} s`;
  if (days < 1) return `${hours} h ${minutes % 60} min`;
  return `${days.toLocaleString("en-US")} d ${hours % 24} h`;
}

export function instant(at) {
  if (!known(at)) return DASH;
  const date = new Date(Math.trunc(at) * 1000);
  return Number.isNaN(date.getTime()) ? DASH : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}
