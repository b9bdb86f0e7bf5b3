-- Sweeps a partition: what a worker lost comes again or is dead, and up to `limit` jobs are claimed that come due.
-- It looks at 100 entries at most, and replies with a megabyte of payload and one job more at most.
-- ARGV, from the third on: token, limit, look-ahead, lease, attempts, "again" where an earlier call may have been lost.
-- Returns Redis' time, when the next job is due and when the next lease ends (empty where there is none), and for each job
-- its id, payload, attempts so far and due time.
local token = ARGV[3]
local limit, ahead, lease, most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local again = ARGV[8] == 'again'

local function first(set)
  return call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
end

-- The reply's head is made last: sweeping and claiming change it. The clock is read again, since a worker counts from the moment at
-- which the reply arrives, and what has passed by then makes its jobs late.
local function finish(reply)
  local next_due, next_claim, next_running = first(due), first(claimed), first(running)
  local next_end = next_claim or next_running
  if next_claim and next_running and tonumber(next_running) < tonumber(next_claim) then next_end = next_running end
  reply[1], reply[2], reply[3] = exact(clock()), next_due or '', next_end or ''
  return reply
end

-- A repeated take answers with what the first one claimed and still holds.
if is_repeated then
  local reply = { '', '', '' }
  for _, id in ipairs(cmsgpack.unpack(last_reply)) do
    local owner, attempts, at = read(id)
    local body = owner == token and call('HGET', payload, id)
    if body then
      call('ZADD', claimed, 'XX', exact(now + lease), id)
      for _, value in ipairs({ id, body, attempts, at }) do reply[#reply + 1] = value end
    end
  end
  return finish(reply)
end
if is_late then return refuse() end

local returned = 0
for _, id in ipairs(call('ZRANGE', running, '-inf', exact(now), 'BYSCORE', 'LIMIT', 0, 20)) do
  local _, attempts, at = read(id)
  if tonumber(attempts) >= most then
    bury(running, id, attempts, at)
  else
    wait(running, id, attempts, at)
    returned = returned + 1
  end
end
for _, id in ipairs(call('ZRANGE', claimed, '-inf', exact(now), 'BYSCORE', 'LIMIT', 0, 20)) do
  local _, attempts, at = read(id)
  wait(claimed, id, attempts, at)
  returned = returned + 1
end

local reply, ids = { '', '', '' }, {}
local found = {}
if limit > 0 then
  found = call('ZRANGE', due, '-inf', exact(now + ahead), 'BYSCORE', 'LIMIT', 0, math.min(limit, 60), 'WITHSCORES')
end
if found[1] then
  for entry = 1, #found, 2 do ids[#ids + 1] = found[entry] end
  local bytes, count = 0, #ids
  local states = call('HMGET', state, unpack(ids))
  local scores, after = {}, {}
  local till = exact(now + lease)
  for n = 1, count do
    local id, at = ids[n], exact(found[2 * n])
    if bytes >= 1048576 then
      ids[n] = nil
    else
      local body = call('HGET', payload, id)
      -- One whose payload Redis has lost is lost.
      if body then
        local attempts = states[n] and match(states[n], '^%S+ (%d+)') or '0'
        scores[#scores + 1] = till
        scores[#scores + 1] = id
        after[#after + 1] = id
        after[#after + 1] = token .. ' ' .. attempts .. ' ' .. at
        for _, value in ipairs({ id, body, attempts, at }) do reply[#reply + 1] = value end
        bytes = bytes + #body
      else
        call('HDEL', state, id)
      end
    end
  end
  if scores[1] then
    call('ZADD', claimed, unpack(scores))
    call('HSET', state, unpack(after))
  end
  call('ZREM', due, unpack(ids))
end

-- A take that found nothing has nothing to repeat, unless an earlier call of it may still be under way.
if #ids > 0 or again then
  remember(cmsgpack.pack(ids))
end
finish(reply)
-- What came back and is not taken here is for the others.
if returned > 0 and reply[2] ~= '' and tonumber(reply[2]) <= now then
  call('PUBLISH', channel, '')
end
return reply
