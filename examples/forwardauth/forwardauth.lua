-- may-pass asks forwardauth about the address of the client, whatever the client has sent in
-- X-Forwarded-For. If there is no answer, the request passes.
core.register_action("may-pass", { "http-req" }, function(txn)
  local answer = core.httpclient():get{
    url = "http://127.0.0.1:8079/",
    headers = { ["x-forwarded-for"] = { txn.f:src() } },
    timeout = 1000,
  }
  if answer and answer.status == 429 then
    txn:set_var("txn.retry_after", answer.headers["retry-after"][0])
  end
end)
