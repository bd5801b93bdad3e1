// The search fetches each page that it found, to show an excerpt. Browsers refuse that to a site opened from disk: there
// the texts of all pages come from one script, `texts.js`, which the build writes.
if (location.protocol === "file:") {
  const root = document.documentElement.dataset.content_root;
  let texts;
  const all = () =>
    (texts ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = `${root}_static/texts.js`;
      script.onload = () => done(window.pageTexts);
      script.onerror = failed;
      document.head.append(script);
    }));
  window.fetch = async (address) => {
    const name = String(address).slice(root.length).replace(/\.html$/, "");
    const main = document.createElement("div");
    main.setAttribute("role", "main");
    main.textContent = (await all())[name] ?? "";
    return { text: async () => main.outerHTML };
  };
}
