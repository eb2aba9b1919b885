// Short texts for charts; all others come from the server (monitor/serve/formats.py).

export const DASH = "–";

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Four digits and grouped thousands.
export function number(value) {
  if (!known(value)) return value ? String(value) : DASH;
  const short = Number(value.toPrecision(4)), size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return short.toExponential();
  return size >= 1000 ? Math.round(value).toLocaleString("en-US") : String(short);
}

// Millions, billions and trillions as M, B and T.
export function count(value) {
  return known(value) && Math.abs(value) >= 1e6
    ? value.toLocaleString("en-US", { notation: "compact", maximumSignificantDigits: 4 }).replace(/(?=[MBT])/, " ") : number(value);
}

export function instant(at) {
  return known(at) && Math.abs(at) < 1e11 ? `${new Date(Math.trunc(at) * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : DASH;
}
