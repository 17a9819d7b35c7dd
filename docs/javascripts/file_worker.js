// Search in pages that are opened from disk. Browsers start no worker from a file, so
// that the script of the search runs in a hidden frame instead, with the same messages.
// After the idea of iframe-worker (Martin Donath, MIT).
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write(
        "<!doctype html><html><body><script>" +
        "var postMessage = data => parent.dispatchEvent(" +
        "new CustomEvent('from-search', {detail: {source: window, data}}));" +
        "var importScripts = (...urls) => urls.reduce((before, url) => before.then(() =>" +
        "new Promise(done => {const s = document.createElement('script'); s.src = url;" +
        "s.onload = done; document.body.appendChild(s);})), Promise.resolve());" +
        "<\/script><script src='" + url + "'><\/script></body></html>"
      );
      inside.document.close();
      this.loaded = new Promise(done => { inside.onload = done; });
      addEventListener("from-search", event => {
        if (event.detail.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", {data: event.detail.data});
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
    }
    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(
        new MessageEvent("message", {data})
      ));
    }
    terminate() { this.frame.remove(); }
  };
}
