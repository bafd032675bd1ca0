// Follows Airflow's theme, opens Airflow's own pages outside of the frame, and sends forms when a choice changes.
"use strict";
(() => {
  const root = document.documentElement;
  const framed = window.parent !== window;
  const theme = () => {
    let chosen = "";
    try {
      chosen = localStorage.getItem("theme") || "";
    } catch {
      chosen = "";
    }
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
    else delete root.dataset.theme;
  };
  theme();
  window.addEventListener("storage", theme);
  if (framed) {
    root.classList.add("framed");
    try {
      new MutationObserver(theme).observe(window.parent.document.documentElement, { attributes: true });
    } catch {
      // another origin: the system's theme is what there is
    }
  }
  for (const picture of document.querySelectorAll(".picture")) picture.scrollLeft = picture.scrollWidth;
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[data-airflow-link]") : null;
    if (link && framed) {
      // The frame may not navigate what is around it: a link of the outer page may.
      event.preventDefault();
      const outer = window.parent.document.createElement("a");
      outer.href = link.href;
      if (event.ctrlKey || event.metaKey) outer.target = "_blank";
      outer.click();
    }
    const copy = event.target instanceof Element ? event.target.closest("button[data-copy]") : null;
    if (copy) {
      const source = document.getElementById(copy.dataset.copy);
      const done = () => { copy.textContent = "Copied"; };
      const select = () => {
        getSelection().selectAllChildren(source);
        copy.textContent = "Selected: copy with Ctrl-C";
      };
      if (navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(done, select);
      else select();
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target instanceof Element && event.target.matches("[data-submit]")) event.target.form.submit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    const field = document.querySelector("input[type=search]");
    if (field) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  });
})();
