// What all pages share: addresses, what the server answers, its stream, times in the
// reader's zone.

import { announce } from "./regions.js";

// ---------------------------------------------------------------------- addresses

// An address with values in its query; several make several, "" removes one.
export function addressOf(path, values = {}) {
  const address = new URL(path, location.href);
  for (const [name, value] of Object.entries(values)) {
    address.searchParams.delete(name);
    for (const one of [value].flat()) if (one !== "" && one !== null) address.searchParams.append(name, one);
  }
  return address;
}

export function keepAddress(values) {
  history.replaceState(null, "", addressOf(location.href, values));
}

// ------------------------------------------------------------------ what is answered

// Made once: toLocaleString makes a formatter for each of 1,000 rows.
const exactly = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const shortly = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const withDay = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const ofDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export function localTimes(within) {
  for (const time of within.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(date.getTime())) continue;
    time.title = exactly.format(date);
    if (time.closest("tr[data-run]")) time.textContent = shortly.format(date);
    else if (time.closest(".log")) time.textContent = ofDay.format(date);
    else if (time.dataset.exact !== undefined) time.textContent = withDay.format(date);
  }
}

// The document of a text of the server; nothing in it runs.
export function parsed(text) {
  const found = new DOMParser().parseFromString(text, "text/html");
  localTimes(found);
  return found;
}

export async function fetchPage(address) {
  const answer = await fetch(address);
  return answer.ok ? parsed(await answer.text()) : null;
}

// --------------------------------------------------------------------- the stream

// A stream does not tell with which status it was refused.
async function isGone(address) {
  const request = new AbortController();
  try { return (await fetch(address, { signal: request.signal })).status === 404; } catch { return false; } finally { request.abort(); }
}

// Browsers have six connections to a server: pages in the background hold none.
export function streamOf(address, kinds, isWanted = () => true) {
  const linkState = document.getElementById("link-state");
  let stream = null;
  const disconnect = () => { stream?.close(); stream = null; };
  const connect = () => {
    if (stream || document.hidden || !isWanted()) return;
    const own = stream = new EventSource(address());
    own.addEventListener("open", () => announce(linkState, ""));
    for (const [kind, take] of Object.entries(kinds)) own.addEventListener(kind, take);
    own.addEventListener("error", () => {
      announce(linkState, "Reconnecting…");
      if (own.readyState !== EventSource.CLOSED || own !== stream) return; // it opens itself again
      stream = null;
      isGone(own.url).then((gone) => { if (gone && kinds.removed) kinds.removed(); else setTimeout(connect, 2000); });
    });
  };
  document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else connect(); });
  return { connect, disconnect };
}
