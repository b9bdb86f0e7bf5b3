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
local due, claimed, running, dead, state, payload, lane = unpack(KEYS)
local seq, channel = ARGV[1], ARGV[2]

local last = redis.call('GET', lane)
if last then
  local past, answers = string.match(last, '^(%d+) (.*)$')
  if past == seq then return answers end
  if tonumber(past) > tonumber(seq) then
    return redis.error_reply('STALE a later batch of this lane was answered already')
  end
end

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local wake = false

local function exact(number)
  return string.format('%.0f', math.min(number, 9e15))
end

local function read(id)
  local held = redis.call('HGET', state, id)
  if not held then return '-', '0', nil end
  return string.match(held, '^(%S+) (%d+) (%d+)$')
end

local function write(id, token, attempts, at)
  redis.call('HSET', state, id, token .. ' ' .. attempts .. ' ' .. at)
end

-- The attempts and due time of a job that `token` holds in `set` under a lease that lasts.
local function held(set, id, token)
  local owner, attempts, at = read(id)
  if owner ~= token then return nil end
  local till = redis.call('ZSCORE', set, id)
  if not till or tonumber(till) <= now then return nil end
  return attempts, at
end

local function wait(id, attempts, at)
  redis.call('ZADD', due, at, id)
  if attempts == '0' then
    redis.call('HDEL', state, id)
  else
    write(id, '-', attempts, at)
  end
  -- Workers look again when there is another first one.
  if redis.call('ZRANGE', due, 0, 0)[1] == id then wake = true end
end

local function bury(id, attempts, at)
  redis.call('ZADD', dead, exact(now), id)
  write(id, '-', attempts, at)
end

local function forget(id)
  redis.call('HDEL', state, id)
  redis.call('HDEL', payload, id)
end

local verbs = {}

function verbs.start(id, token, lease)
  local attempts, at = held(claimed, id, token)
  if not attempts then return false end
  redis.call('ZREM', claimed, id)
  redis.call('ZADD', running, exact(now + lease), id)
  write(id, token, string.format('%.0f', tonumber(attempts) + 1), at)
  return true
end

-- Takes back a start that was never seen.
function verbs.unstart(id, token)
  local attempts, at = held(running, id, token)
  if not attempts then return false end
  redis.call('ZREM', running, id)
  wait(id, string.format('%.0f', tonumber(attempts) - 1), at)
  return true
end

function verbs.release(id, token)
  local attempts, at = held(claimed, id, token)
  if not attempts then return false end
  redis.call('ZREM', claimed, id)
  wait(id, attempts, at)
  return true
end

function verbs.renew(id, token, lease)
  for _, set in ipairs({ running, claimed }) do
    if held(set, id, token) then
      redis.call('ZADD', set, exact(now + lease), id)
      return true
    end
  end
  return false
end

function verbs.done(id, token)
  if not held(running, id, token) then return false end
  redis.call('ZREM', running, id)
  forget(id)
  return true
end

function verbs.bury(id, token)
  local attempts, at = held(running, id, token)
  if not attempts then return false end
  redis.call('ZREM', running, id)
  bury(id, attempts, at)
  return true
end

function verbs.retry(id, token, delay, limit)
  local attempts, at = held(running, id, token)
  if not attempts then return false end
  redis.call('ZREM', running, id)
  if tonumber(attempts) >= limit then
    bury(id, attempts, at)
  else
    wait(id, attempts, exact(now + delay))
  end
  return true
end

function verbs.cancel(id)
  if redis.call('ZREM', due, id) == 0 and redis.call('ZREM', claimed, id) == 0 then return false end
  forget(id)
  return true
end

function verbs.reschedule(id, _, delay)
  if redis.call('ZREM', due, id) == 0 and redis.call('ZREM', claimed, id) == 0 then return false end
  local _, attempts = read(id)
  wait(id, attempts, exact(now + delay))
  return true
end

function verbs.revive(id)
  if redis.call('ZREM', dead, id) == 0 then return false end
  wait(id, '0', exact(now))
  return true
end

function verbs.purge(id)
  if redis.call('ZREM', dead, id) == 0 then return false end
  forget(id)
  return true
end

local answers = {}
local at = 3
while ARGV[at] do
  local done = verbs[ARGV[at]](ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]))
  answers[#answers + 1] = done and '1' or '0'
  at = at + 5
end
local reply = table.concat(answers)
redis.call('SET', lane, seq .. ' ' .. reply, 'PX', 3600000)
if wake then redis.call('PUBLISH', channel, '') end
return reply
