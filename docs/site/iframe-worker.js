// Makes the search work on a site that was opened from a disk, where browsers start no workers. The script of a worker then runs
// in a hidden frame of the page. Such a frame has no address of its own, so the page may reach into it.
if (location.protocol === "file:") {
  window.Worker = class {
    onmessage = null;
    onerror = null;
    onmessageerror = null;
    #frame = document.createElement("iframe");
    #waiting = []; // messages for the script, until it runs
    #runs = false;

    constructor(address) {
      this.#frame.hidden = true;
      this.#frame.srcdoc = "<!doctype html>";
      this.#frame.onload = () => this.#start(new URL(address, location));
      document.body.append(this.#frame);
    }

    postMessage(data) {
      if (this.#runs) this.#hand(data);
      else this.#waiting.push(data);
    }

    terminate() {
      this.#frame.remove();
    }

    #start(address) {
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.(new MessageEvent("message", { data })));
      const script = inside.document.createElement("script");
      script.src = address;
      script.onerror = (event) => this.onerror?.(event);
      script.onload = () => {
        this.#runs = true;
        this.#waiting.splice(0).forEach((data) => this.#hand(data));
      };
      inside.document.body.append(script);
    }

    #hand(data) {
      const inside = this.#frame.contentWindow;
      setTimeout(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };
}
