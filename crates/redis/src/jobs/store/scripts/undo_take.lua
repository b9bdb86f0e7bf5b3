-- Undoes a take whose answer never came, and keeps it from being carried out late.
-- Returns how many jobs wait again.
if is_late then return 0 end
local wrong = wrong_type({ due, claimed, watching }, { state })
if wrong then return wrong end

local returned = 0
if is_resent then
  for _, id in ipairs(cmsgpack.unpack(last_answer)) do
    local held_by, attempts, at, max_attempts, failure = read(id)
    if held_by == name and call('ZSCORE', claimed, id) then
      to_due(claimed, id, attempts, at, max_attempts, failure)
      returned = returned + 1
    end
  end
end
remember(cmsgpack.pack({}))
if returned > 0 then hint() end
return returned
