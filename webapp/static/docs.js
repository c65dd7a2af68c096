const place = document.getElementById("swagger-ui");
SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  presets: [SwaggerUIBundle.presets.apis],
  persistAuthorization: false,
});
