"use strict";

// The page's script connects to the address that this attribute has, and wants it whole.
document.addEventListener("DOMContentLoaded", () => {
  const terminal = document.querySelector("#terminal");
  const socket = new URL(terminal.dataset.sessionWebsocketUrl, location.href);
  socket.protocol = "ws:";
  terminal.dataset.sessionWebsocketUrl = socket.href;
  document.querySelector("#again").addEventListener("click", () => location.reload());
  // Keys go to the dashboard without a click. Before it draws, its socket may not be open.
  const drawing = new MutationObserver(() => {
    if (document.body.classList.contains("-first-byte")) {
      drawing.disconnect();
      document.querySelector(".xterm-helper-textarea").focus();
    }
  });
  drawing.observe(document.body, { attributeFilter: ["class"] });
  if (!document.createElement("canvas").getContext("webgl2")) {
    document.querySelector("#waiting").textContent =
      "The dashboard needs WebGL 2, which this browser has not or has switched off.";
  }
});
