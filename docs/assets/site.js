// Names and roles for screen readers that the theme leaves out.
const tidy = () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  // Buttons of a code block are no landmark of the page.
  for (const part of document.querySelectorAll("nav.md-code__nav:not([role])")) {
    part.setAttribute("role", "none");
  }
  // Parts of the menu have the names of tabs.
  for (const part of document.querySelectorAll("nav.md-nav[aria-labelledby^=__nav_]")) {
    const label = document.getElementById(part.getAttribute("aria-labelledby"));
    part.setAttribute("aria-label", `Menu: ${label?.textContent.trim()}`);
    part.removeAttribute("aria-labelledby");
  }
};

tidy();
new MutationObserver(tidy).observe(document.body, { childList: true, subtree: true });
