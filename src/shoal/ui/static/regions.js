// What is read out by screen readers: in each region nothing twice, and at most one message
// in 5 s, the newest. No text is no message: it is set at once.

const EVERY_MS = 5000;
const known = new Map(); // region -> when it said something last, and what waits

export function announce(region, text) {
  const last = known.get(region) || { at: -EVERY_MS, timer: 0 };
  known.set(region, last);
  clearTimeout(last.timer);
  if (region.textContent === text) return;
  const wait = last.at + EVERY_MS - performance.now();
  if (text && wait > 0) { last.timer = setTimeout(() => announce(region, text), wait); return; }
  if (text) last.at = performance.now();
  region.textContent = text;
}
