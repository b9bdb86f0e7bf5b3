#!lua flags=allow-oom
-- Carries out a batch of verbs on jobs of one partition that are there already. It runs also when Redis is out of memory.
-- KEYS: due claimed running dead state payload lane
-- ARGV: seq, channel, then for each job: verb, id, token, first number, second number.
-- Returns a digit for each job: 1 where it was done, 0 where the job was not as the verb wants it.
--
-- A job has its payload in `payload`, and is in exactly one of four sorted sets:
--   due      waits; the score is its due time
--   claimed  waits, but a worker has it on its wheel; the score is the end of that worker's lease
--   running  was delivered; the score is the end of the lease
--   dead     ran out of attempts, or was buried; the score is when
-- `state` holds "token attempts due" for each job that was ever claimed, with the token "-" while nobody holds it.
--
-- Starts and dones, which every job needs, are carried out together: a few commands for all of a batch.
local due, claimed, running, dead, state, payload, lane = unpack(KEYS)
local seq, channel = ARGV[1], ARGV[2]
local call, match = redis.call, string.match

local last = call('GET', lane)
if last then
  local past, answers = match(last, '^(%d+) (.*)$')
  if past == seq then return answers end
  if tonumber(past) > tonumber(seq) then
    return redis.error_reply('STALE a later batch of this lane was answered already')
  end
end

local time = call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local answers = {}

local function exact(number)
  return string.format('%.0f', math.min(number, 9e15))
end

-- Starts or dones that are yet to be carried out, and which verbs of the batch they are.
local which, ids, tokens, leases, places = nil, {}, {}, {}, {}

local function carry_out()
  if not which then return end
  local set = which == 'start' and claimed or running
  local states = call('HMGET', state, unpack(ids))
  local ends = call('ZMSCORE', set, unpack(ids))
  local held, scores, after = {}, {}, {}
  for n, id in ipairs(ids) do
    local owner, attempts, at = match(states[n] or '', '^(%S+) (%d+) (%d+)$')
    local till = ends[n]
    if owner == tokens[n] and till and tonumber(till) > now then
      held[#held + 1] = id
      answers[places[n]] = '1'
      if which == 'start' then
        scores[#scores + 1] = exact(now + leases[n])
        scores[#scores + 1] = id
        after[#after + 1] = id
        after[#after + 1] = owner .. ' ' .. exact(attempts + 1) .. ' ' .. at
      end
    else
      answers[places[n]] = '0'
    end
  end
  if held[1] then
    call('ZREM', set, unpack(held))
    if which == 'start' then
      call('ZADD', running, unpack(scores))
      call('HSET', state, unpack(after))
    else
      call('HDEL', state, unpack(held))
      call('HDEL', payload, unpack(held))
    end
  end
  which, ids, tokens, leases, places = nil, {}, {}, {}, {}
end

-- Every other verb, of which a batch has few.
local wake = false
local others

local function other_verbs()
  local verbs = {}

  local function read(id)
    local held = call('HGET', state, id)
    if not held then return '-', '0', nil end
    return match(held, '^(%S+) (%d+) (%d+)$')
  end

  local function write(id, token, attempts, at)
    call('HSET', state, id, token .. ' ' .. attempts .. ' ' .. at)
  end

  -- The attempts and due time of a job that `token` holds in `set` under a lease that lasts.
  local function held(set, id, token)
    local owner, attempts, at = read(id)
    if owner ~= token then return nil end
    local till = call('ZSCORE', set, id)
    if not till or tonumber(till) <= now then return nil end
    return attempts, at
  end

  local function wait(id, attempts, at)
    call('ZADD', due, at, id)
    if attempts == '0' then
      call('HDEL', state, id)
    else
      write(id, '-', attempts, at)
    end
    -- Workers look again when there is another first one.
    if call('ZRANGE', due, 0, 0)[1] == id then wake = true end
  end

  local function bury(id, attempts, at)
    call('ZADD', dead, exact(now), id)
    write(id, '-', attempts, at)
  end

  local function forget(id)
    call('HDEL', state, id)
    call('HDEL', payload, id)
  end

  -- Takes back a start that was never seen.
  function verbs.unstart(id, token)
    local attempts, at = held(running, id, token)
    if not attempts then return false end
    call('ZREM', running, id)
    wait(id, exact(attempts - 1), at)
    return true
  end

  function verbs.release(id, token)
    local attempts, at = held(claimed, id, token)
    if not attempts then return false end
    call('ZREM', claimed, id)
    wait(id, attempts, at)
    return true
  end

  function verbs.renew(id, token, lease)
    for _, set in ipairs({ running, claimed }) do
      if held(set, id, token) then
        call('ZADD', set, exact(now + lease), id)
        return true
      end
    end
    return false
  end

  function verbs.bury(id, token)
    local attempts, at = held(running, id, token)
    if not attempts then return false end
    call('ZREM', running, id)
    bury(id, attempts, at)
    return true
  end

  function verbs.retry(id, token, delay, limit)
    local attempts, at = held(running, id, token)
    if not attempts then return false end
    call('ZREM', running, id)
    if tonumber(attempts) >= limit then
      bury(id, attempts, at)
    else
      wait(id, attempts, exact(now + delay))
    end
    return true
  end

  function verbs.cancel(id)
    if call('ZREM', due, id) == 0 and call('ZREM', claimed, id) == 0 then return false end
    forget(id)
    return true
  end

  function verbs.reschedule(id, _, delay)
    if call('ZREM', due, id) == 0 and call('ZREM', claimed, id) == 0 then return false end
    local _, attempts = read(id)
    wait(id, attempts, exact(now + delay))
    return true
  end

  function verbs.revive(id)
    if call('ZREM', dead, id) == 0 then return false end
    wait(id, '0', exact(now))
    return true
  end

  function verbs.purge(id)
    if call('ZREM', dead, id) == 0 then return false end
    forget(id)
    return true
  end

  return verbs
end

local place = 0
for at = 3, #ARGV, 5 do
  local verb, id, token = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  place = place + 1
  if verb == 'start' or verb == 'done' then
    if which ~= verb then carry_out() end
    which = verb
    local n = #ids + 1
    ids[n], tokens[n], leases[n], places[n] = id, token, ARGV[at + 3], place
  else
    -- In the order in which they were asked for.
    carry_out()
    others = others or other_verbs()
    local done = others[verb](id, token, tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]))
    answers[place] = done and '1' or '0'
  end
end
carry_out()
local reply = table.concat(answers)
call('SET', lane, seq .. ' ' .. reply, 'PX', 3600000)
if wake then call('PUBLISH', channel, '') end
return reply
