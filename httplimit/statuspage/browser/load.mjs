// Sends more requests than the server allows, until it is stopped.
const url = process.env.SERVER + '/api/time'
for (;;) {
  const sent = Array.from({ length: 20 }, () => fetch(url).then(r => r.arrayBuffer(), () => {}))
  await Promise.all([...sent, new Promise(resolve => setTimeout(resolve, 100))])
}
