-- What the scripts begin with that change jobs. Each is a call with a number, of a sender that has one call under way at a time.
-- KEYS: due claimed running dead state payload last. ARGV: number, channel, and what each script says.
--
-- A job has its payload in `payload`, and is in exactly one of four sorted sets:
--   due      waits; the score is its due time
--   claimed  waits, but a worker has it on its wheel; the score is the end of that worker's lease
--   running  was delivered; the score is the end of the lease
--   dead     ran out of attempts, or was buried; the score is when
-- `state` holds "token attempts due" for each job that is claimed or was ever started, with the token "-" while nobody holds it.
-- `last` holds the sender's last call: its number and its reply. A repeated call answers as the first did, and one that comes late,
-- behind its successor, is refused.
local due, claimed, running, dead, state, payload, last = unpack(KEYS)
local number, channel = ARGV[1], ARGV[2]
local call, match = redis.call, string.match

-- Redis' clock, in microseconds.
local function clock()
  local time = call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local now = clock()

-- Lua writes 14 digits of a number unless it is told to write all.
local function exact(value)
  return string.format('%.0f', math.min(value, 9e15))
end

-- Who holds a job, its attempts and its due time. Of one whose state Redis has lost: nobody, none and now.
local function read(id)
  local owner, attempts, at = match(call('HGET', state, id) or '', '^(%S+) (%d+) (%d+)$')
  return owner or '-', attempts or '0', at or exact(now)
end

local function write(id, token, attempts, at)
  call('HSET', state, id, token .. ' ' .. attempts .. ' ' .. at)
end

-- A job is put in its new place before it leaves the old one: where a command fails midway, none is nowhere.
local function wait(from, id, attempts, at)
  call('ZADD', due, at, id)
  if from ~= due then call('ZREM', from, id) end
  if attempts == '0' then
    call('HDEL', state, id)
  else
    write(id, '-', attempts, at)
  end
end

local function bury(from, id, attempts, at)
  call('ZADD', dead, exact(now), id)
  call('ZREM', from, id)
  write(id, '-', attempts, at)
end

local past, last_reply = match(call('GET', last) or '', '^(%d+) (.*)$')
local is_repeated = past == number
local is_late = past and tonumber(past) > tonumber(number)

local function refuse()
  return redis.error_reply('STALE a later call of this sender was answered already')
end

local function remember(reply)
  call('SET', last, number .. ' ' .. reply, 'PX', 3600000)
end

