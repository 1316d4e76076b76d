// Refreshes the bars of a subject every second, by copying the changed parts into the page, and the
// board of the start page every three seconds, by exchanging it. Without this script, a page shows
// the state at the time when it was loaded.
"use strict";

const LONGEST = 10000;
// The time in ms after which the script treats the server as unreachable.
const PATIENCE = 2000;

function live(usage, every, word) {
  const pulse = document.getElementById("pulse");
  const news = document.getElementById("news");
  const pause = document.getElementById("pause");
  const stale = document.getElementById("stale");
  let wait = every;
  let isPaused = false;
  let isLooking = false;
  let timer = 0;

  // Announces to screen readers only that a limit has been used up, or is no longer used up.
  function announce(row, before, after) {
    const isFull = after === "full";
    if (isFull !== (before === "full")) {
      const period = row.querySelector("th").textContent;
      const rule = row.closest("table").querySelector("caption:not(.unseen)");
      news.textContent = (rule ? rule.textContent + ", " : "") + period + ": " + (isFull ? "used up" : "calls are allowed again");
    }
  }

  function copy(from) {
    const place = document.getElementById(from.id);
    if (!place) return false;
    const kind = from.dataset.live;
    if (kind === "width") {
      place.setAttribute("width", from.getAttribute("width"));
    } else if (kind === "state") {
      announce(place, place.dataset.state, from.dataset.state);
      place.dataset.state = from.dataset.state;
    } else {
      place.hidden = from.hidden;
      if (place.textContent !== from.textContent) place.textContent = from.textContent;
    }
    return true;
  }

  async function look() {
    const answer = await fetch(usage.dataset.source, {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
    const text = await answer.text();
    // The user may have paused the page while the answer was on its way.
    if (isPaused) return;
    if (answer.status === 401) {
      isPaused = true;
      pause.hidden = true;
      pulse.textContent = "You are logged out: these are the last numbers.";
      return;
    }
    if (!answer.ok) throw new Error("status " + answer.status);
    const page = new DOMParser().parseFromString(text, "text/html");
    wait = every;
    pulse.textContent = word;
    if (usage.id === "board") {
      exchange(page.getElementById("board"));
      return;
    }
    const parts = Array.from(page.querySelectorAll("[data-live]"));
    const version = page.getElementById("usage").dataset.version;
    // Only the bars are refreshed, so a new version means that the rest of the page is out of date.
    if (version && usage.dataset.version && version !== usage.dataset.version) stale.hidden = false;
    // Tables are replaced by a message while the counters cannot be read, and the rules may change,
    // so the whole part is exchanged.
    const isOther = parts.length !== usage.querySelectorAll("[data-live]").length;
    if (isOther || !parts.every(copy)) usage.replaceChildren(...page.getElementById("usage").childNodes);
  }

  // Exchanges the board, and keeps the focus on the same control.
  function exchange(board) {
    const focused = usage.contains(document.activeElement) ? document.activeElement.id : "";
    usage.replaceChildren(...board.childNodes);
    if (focused) document.getElementById(focused)?.focus();
  }

  async function turn() {
    if (isLooking) return;
    isLooking = true;
    if (!isPaused && !document.hidden) {
      try {
        await look();
      } catch (why) {
        wait = Math.min(wait * 2, LONGEST);
        if (!isPaused) pulse.textContent = "No answer; these are the last numbers. Trying again.";
      }
    }
    isLooking = false;
    if (!pause.hidden) timer = setTimeout(turn, wait);
  }

  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pulse.textContent = isPaused ? "Paused." : word;
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !pause.hidden) {
      clearTimeout(timer);
      timer = setTimeout(turn, 0);
    }
  });
  pause.hidden = false;
  document.getElementById("refresh").hidden = true;
  turn();
}

const usage = document.getElementById("usage");
if (usage) live(usage, 1000, "Live, every second.");
const board = document.getElementById("board");
if (board) live(board, 3000, "Live, every 3 seconds.");
// Moves the focus to the reason why a form was not saved.
const first = document.querySelector("[role=alert][tabindex]");
if (first) first.focus();
