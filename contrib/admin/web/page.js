// Refreshes what a page shows, while somebody looks at it and does not type.
const every = 5000
const box = document.getElementById("live")

if (box) {
  box.parentElement.hidden = false
  box.checked = sessionStorage.getItem("live") !== "off"
  box.addEventListener("change", () => sessionStorage.setItem("live", box.checked ? "on" : "off"))
  setInterval(refresh, every)
}

async function refresh() {
  const main = document.querySelector("main[data-refresh]")
  const busy = main.contains(document.activeElement) && document.activeElement !== main
  if (!box.checked || document.hidden || busy || !getSelection().isCollapsed) return
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" })
    if (!answer.ok && answer.status !== 503) return // that page says what is unknown
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main")
    const typed = [...main.querySelectorAll("input:not([type=hidden])")].some(i => i.value !== i.defaultValue)
    if (next && !typed && !main.contains(document.activeElement)) main.replaceChildren(...next.childNodes)
  } catch { /* the application does not answer: what is shown stays */ }
}
